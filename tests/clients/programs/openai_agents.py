"""An agent of openai-agents that hands over to one with a function and the code interpreter. No model is named.

Chat completions of the SDK have no hosted tools.
"""

from __future__ import annotations

import asyncio
import json
import sys

from agents import (
    Agent,
    CodeInterpreterTool,
    HandoffCallItem,
    Runner,
    ToolCallItem,
    function_tool,
    set_default_openai_api,
)


@function_tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"21 degrees in {city}"


CODE_INTERPRETER = CodeInterpreterTool({"type": "code_interpreter", "container": {"type": "auto"}})
SETTINGS = {"responses": ("responses", [get_weather, CODE_INTERPRETER]), "chat": ("chat_completions", [get_weather])}


async def main(question: str, next_question: str, api: str) -> None:
    """Ask both questions, at once and streamed, and print the answers."""
    name, tools = SETTINGS[api]
    set_default_openai_api(name)
    forecaster = Agent(name="forecaster", instructions="Answer questions about the weather.", tools=tools)
    triage = Agent(name="triage", instructions="Hand over to an expert.", handoffs=[forecaster])
    at_once = await Runner.run(triage, question)
    streaming = Runner.run_streamed(triage, question)
    deltas = [
        event.data.delta
        async for event in streaming.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    history = [*streaming.to_input_list(), {"role": "user", "content": next_question}]
    next_run = await Runner.run(streaming.last_agent, history)
    print(
        json.dumps(
            {
                "answer": at_once.final_output,
                "calls": [
                    getattr(item.raw_item, "name", "code_interpreter")
                    for item in at_once.new_items
                    if isinstance(item, HandoffCallItem | ToolCallItem)
                ],
                "deltas": deltas,
                "next_answer": next_run.final_output,
            }
        )
    )


asyncio.run(main(*sys.argv[1:]))
