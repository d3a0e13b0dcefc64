"""A pydantic-ai agent with a function and the code interpreter, over either API of OpenAI."""

from __future__ import annotations

import asyncio
import json
import sys

from pydantic_ai import Agent, CodeExecutionTool
from pydantic_ai.capabilities import NativeTool
from pydantic_ai.messages import BaseToolCallPart

CODE_INTERPRETER = {"type": "code_interpreter", "container": {"type": "auto"}}
SETTINGS = {
    "responses": {"model": "openai-responses:gpt-5", "capabilities": [NativeTool(CodeExecutionTool())]},
    "chat": {
        "model": "openai-chat:gpt-5",
        "model_settings": {"extra_body": {"antwort:tools": [CODE_INTERPRETER]}},
    },
}


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"21 degrees in {city}"


async def main(question: str, next_question: str, api: str) -> None:
    """Ask both questions, at once and streamed, and print the answers."""
    agent = Agent(**SETTINGS[api], instructions="Answer questions about the weather.", tools=[get_weather])
    at_once = await agent.run(question)
    async with agent.run_stream(question) as streaming:
        deltas = [delta async for delta in streaming.stream_text(delta=True, debounce_by=None)]
    next_run = await agent.run(next_question, message_history=streaming.all_messages())
    print(
        json.dumps(
            {
                "answer": at_once.output,
                "calls": [
                    part.tool_name
                    for message in at_once.all_messages()
                    for part in message.parts
                    if isinstance(part, BaseToolCallPart)
                ],
                "deltas": deltas,
                "next_answer": next_run.output,
            }
        )
    )


asyncio.run(main(*sys.argv[1:]))
