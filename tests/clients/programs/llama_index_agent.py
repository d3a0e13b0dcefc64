"""A LlamaIndex agent with a function and the code interpreter, over either API of OpenAI."""

from __future__ import annotations

import asyncio
import json
import os
import sys

from llama_index.core.agent.workflow import AgentStream, FunctionAgent, ToolCall
from llama_index.core.memory import Memory
from llama_index.llms.openai import OpenAI, OpenAIResponses

CODE_INTERPRETER = {"type": "code_interpreter", "container": {"type": "auto"}}
ADDRESS = os.environ["OPENAI_BASE_URL"]
SETTINGS = {
    "responses": lambda: OpenAIResponses(api_base=ADDRESS, built_in_tools=[CODE_INTERPRETER]),
    "chat": lambda: OpenAI(api_base=ADDRESS, additional_kwargs={"extra_body": {"antwort:tools": [CODE_INTERPRETER]}}),
}


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"21 degrees in {city}"


async def main(question: str, next_question: str, api: str) -> None:
    """Ask both questions, and print the answers. The agent always streams, and reports the calls of functions only."""
    agent = FunctionAgent(llm=SETTINGS[api](), tools=[get_weather], system_prompt="Answer questions about the weather.")
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
