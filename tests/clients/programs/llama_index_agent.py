"""A LlamaIndex agent with a function and the code interpreter."""

from __future__ import annotations

import asyncio
import json
import os
import sys

from llama_index.core.agent.workflow import AgentStream, FunctionAgent, ToolCall
from llama_index.core.memory import Memory
from llama_index.llms.openai import OpenAIResponses


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"21 degrees in {city}"


async def main(question: str, next_question: str) -> None:
    """Ask both questions, and print the answers. The agent always streams, and reports the calls of functions only."""
    model = OpenAIResponses(
        api_base=os.environ["OPENAI_BASE_URL"],
        built_in_tools=[{"type": "code_interpreter", "container": {"type": "auto"}}],
    )
    agent = FunctionAgent(llm=model, tools=[get_weather], system_prompt="Answer questions about the weather.")
    memory = Memory.from_defaults()
    streaming = agent.run(question, memory=memory)
    deltas, calls = [], []
    async for event in streaming.stream_events():
        if isinstance(event, AgentStream) and event.delta:
            deltas.append(event.delta)
        if isinstance(event, ToolCall):
            calls.append(event.tool_name)
    answer = await streaming
    next_answer = await agent.run(next_question, memory=memory)
    print(json.dumps({"answer": str(answer), "calls": calls, "deltas": deltas, "next_answer": str(next_answer)}))


asyncio.run(main(*sys.argv[1:]))
