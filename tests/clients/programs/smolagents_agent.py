"""A smolagents agent with a function, and the code interpreter of the server: it knows chat completions only.

Its answer is a call of a tool of its own, and its history is text in messages of the user.
"""

from __future__ import annotations

import json
import os
import sys

from rich.console import Console
from smolagents import ActionStep, AgentLogger, OpenAIModel, ToolCallingAgent, tool
from smolagents.models import ChatMessageStreamDelta


@tool
def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: The name of the city.
    """
    return f"21 degrees in {city}"


model = OpenAIModel(
    "gpt-5",
    api_base=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
    extra_body={"antwort:tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]},
)


def main(question: str, next_question: str) -> None:
    """Ask both questions, at once and streamed, and print the answers."""
    logger = AgentLogger(console=Console(quiet=True))
    agent = ToolCallingAgent([get_weather], model, logger=logger)
    answer = agent.run(question)
    steps = [step for step in agent.memory.steps if isinstance(step, ActionStep)]
    streaming = ToolCallingAgent([get_weather], model, logger=logger, stream_outputs=True)
    fragments = [
        (call.function.name, call.function.arguments)
        for event in streaming.run(question, stream=True)
        if isinstance(event, ChatMessageStreamDelta)
        for call in event.tool_calls or []
    ]
    last_call = max(index for index, (name, _) in enumerate(fragments) if name)
    print(
        json.dumps(
            {
                "answer": answer,
                "calls": [call.name for step in steps for call in step.tool_calls or []],
                "deltas": [arguments for _, arguments in fragments[last_call:]],
                "next_answer": streaming.run(next_question, reset=False),
            }
        )
    )


main(*sys.argv[1:3])
