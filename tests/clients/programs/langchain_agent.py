"""A LangChain agent with a function and the code interpreter, over each API of the server."""

from __future__ import annotations

import json
import sys

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_openai import ChatOpenAI

CODE_INTERPRETER = {"type": "code_interpreter", "container": {"type": "auto"}}
CODE_EXECUTION = {"type": "code_execution_20250825", "name": "code_execution"}


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"21 degrees in {city}"


SETTINGS = {
    "responses": lambda: (ChatOpenAI(use_responses_api=True), CODE_INTERPRETER),
    "chat": lambda: (ChatOpenAI(extra_body={"antwort:tools": [CODE_INTERPRETER]}),),
    "messages": lambda: (ChatAnthropic(model="claude-sonnet-4-5"), CODE_EXECUTION),
}


def main(question: str, next_question: str, api: str) -> None:
    """Ask both questions, at once and streamed, and print the answers."""
    model, *hosted = SETTINGS[api]()
    agent = create_agent(model, [get_weather, *hosted], system_prompt="Answer questions about the weather.")
    at_once = agent.invoke({"messages": [HumanMessage(question)]})["messages"]
    deltas, history = [], []
    for mode, update in agent.stream({"messages": [HumanMessage(question)]}, stream_mode=["messages", "values"]):
        if mode == "values":
            history = update["messages"]
        elif isinstance(update[0], AIMessageChunk) and update[0].text:
            deltas.append(update[0].text)
    next_run = agent.invoke({"messages": [*history, HumanMessage(next_question)]})["messages"]
    print(
        json.dumps(
            {
                "answer": at_once[-1].text,
                "calls": [
                    block["name"]
                    for message in at_once
                    for block in message.content_blocks
                    if block["type"] in {"tool_call", "server_tool_call"}
                ],
                "deltas": deltas,
                "next_answer": next_run[-1].text,
            }
        )
    )


main(*sys.argv[1:])
