"""A LangChain agent with a function and the code interpreter."""

from __future__ import annotations

import json
import sys

from langchain.agents import create_agent
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_openai import ChatOpenAI


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"21 degrees in {city}"


def main(question: str, next_question: str) -> None:
    """Ask both questions, at once and streamed, and print the answers."""
    model = ChatOpenAI(use_responses_api=True)
    tools = [get_weather, {"type": "code_interpreter", "container": {"type": "auto"}}]
    agent = create_agent(model, tools, system_prompt="Answer questions about the weather.")
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
                    block.get("name", "code_interpreter")
                    for message in at_once
                    for block in message.content
                    if isinstance(block, dict) and block["type"] in {"function_call", "code_interpreter_call"}
                ],
                "deltas": deltas,
                "next_answer": next_run[-1].text,
            }
        )
    )


main(*sys.argv[1:])
