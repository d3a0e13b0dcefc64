"""Small agents of client libraries, unmodified, over each API of the server: a function, the code interpreter, streams,
and a second question.

All get address and key of the server from the environment. The Agents SDKs send the name of their default model, the
libraries one of OpenAI's; the server has a model of another name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from fixtures_clients import (
    CLIENTS_PYTHON,
    DEVELOPMENT_PYTHON,
    NODE,
    NODE_MODULES,
    PROGRAMS,
    client_environment,
    requests,
    run_client,
)
from fixtures_code_interpreter import call, code_server
from fixtures_server import Server

QUESTION = "How is the weather in Berlin, in Fahrenheit?"
NEXT_QUESTION = "Which city and which temperature was that?"
FINAL_ANSWER = {"name": "final_answer", "arguments": {"answer": "It is <<find /69\\.8/>> °F in Berlin."}}
BOTH = "<<find /21 degrees in Berlin|21 °C|69\\.8 °F/>>"

SCRIPT = {
    "fragment": 5,
    "answers": [
        # smolagents: the outputs of its calls are messages of the user, and its answer is a call.
        {
            "when": {"text": NEXT_QUESTION, "tool": "final_answer"},
            "reply": [{"call": {"name": "final_answer", "arguments": {"answer": BOTH}}}],
        },
        {"when": {"output": "69.8", "tool": "final_answer"}, "reply": [{"call": FINAL_ANSWER}]},
        {"when": {"text": "21 degrees", "tool": "final_answer"}, "reply": [call("print(21 * 9 / 5 + 32)")]},
        # The city is in the output of the function, the temperature in the answer: both are in the history.
        {"when": {"text": NEXT_QUESTION}, "reply": [{"text": BOTH}]},
        {"when": {"output": "69.8"}, "reply": [{"text": "It is <<find /69\\.8/>> °F in Berlin."}]},
        {
            "when": {"output": "21 degrees", "tool": "code_interpreter"},
            "reply": [call("print(21 * 9 / 5 + 32)")],
        },
        {"when": {"output": "21 degrees"}, "reply": [{"text": "It is 21 °C in Berlin."}]},
        {
            "when": {"tool": "transfer_to_forecaster"},
            "reply": [{"call": {"name": "transfer_to_forecaster", "arguments": {}}}],
        },
        {
            "when": {"tool": "get_weather"},
            "reply": [
                {"reasoning": "A function knows the weather."},
                {"call": {"name": "get_weather", "arguments": {"city": "Berlin"}}},
            ],
        },
    ],
}


@dataclass(frozen=True)
class Client:
    """A program and its interpreter, the API that it uses, the calls that it reports, its number of requests."""

    program: str
    interpreter: Path
    api: str
    calls: list[str]
    requests: int = 5
    temperature: str = "69.8 °F"
    """°F if the code interpreter of the server calculates it."""
    streamed: str = "{answer}"

    @property
    def answer(self) -> str:
        return f"It is {self.temperature} in Berlin."

    def __str__(self) -> str:
        return f"{self.program}-{self.api}"


HANDOFF = ["transfer_to_forecaster", "get_weather"]
AGENTS_SDKS = [
    Client("openai_agents.py", DEVELOPMENT_PYTHON, "responses", [*HANDOFF, "code_interpreter"], requests=7),
    Client("openai_agents.py", DEVELOPMENT_PYTHON, "chat", HANDOFF, requests=7, temperature="21 °C"),
    Client("openai_agents.mjs", NODE, "responses", [*HANDOFF, "code_interpreter_call"], requests=7),
    Client("openai_agents.mjs", NODE, "chat", HANDOFF, requests=7, temperature="21 °C"),
]
# Code that runs by `antwort:tools` of chat completions is no call of the client.
LIBRARIES = [
    Client("openai_node_responses.mjs", NODE, "responses", ["get_weather", "code_interpreter_call"]),
    Client("openai_node_chat.mjs", NODE, "chat", ["get_weather"]),
    Client("ai_sdk.mjs", NODE, "responses", ["get_weather", "code_interpreter"]),
    Client("ai_sdk.mjs", NODE, "chat", ["get_weather"], temperature="21 °C"),
    Client("ai_sdk.mjs", NODE, "messages", ["get_weather", "code_execution"]),
    Client("langchain_agent.py", CLIENTS_PYTHON, "responses", ["get_weather", "code_interpreter"]),
    Client("langchain_agent.py", CLIENTS_PYTHON, "chat", ["get_weather"]),
    Client("langchain_agent.py", CLIENTS_PYTHON, "messages", ["get_weather", "code_interpreter"]),
    Client("pydantic_ai_agent.py", CLIENTS_PYTHON, "responses", ["get_weather", "code_execution"]),
    Client("pydantic_ai_agent.py", CLIENTS_PYTHON, "chat", ["get_weather"]),
    Client("llama_index_agent.py", CLIENTS_PYTHON, "responses", ["get_weather"], requests=3),
    Client("llama_index_agent.py", CLIENTS_PYTHON, "chat", ["get_weather"], requests=3),
    Client(
        "smolagents_agent.py",
        CLIENTS_PYTHON,
        "chat",
        ["get_weather", "final_answer"],
        streamed='{"answer":"{answer}"}',
    ),
]
ROUTES = {
    "responses": "responses.create",
    "chat": "chat_completions.create_chat_completion",
    "messages": "messages.create",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with code_server("local", tmp_path_factory.mktemp("server"), script=SCRIPT) as running:
        yield running


@pytest.mark.parametrize("client", AGENTS_SDKS, ids=str)
def test_agents_sdk_runs_with_no_model_named(client, server, tmp_path):
    check_agent(client, server, tmp_path)


@pytest.mark.parametrize("client", LIBRARIES, ids=str)
def test_agent_of_a_library_runs_with_a_model_name_of_openai(client, server, tmp_path):
    check_agent(client, server, tmp_path)


def check_agent(client: Client, server: Server, directory: Path) -> None:
    """Run the agent, and check the answers at once, streamed and to the second question, and the requests."""
    (directory / "node_modules").symlink_to(NODE_MODULES)
    program = directory / client.program
    program.write_text((PROGRAMS / client.program).read_text(encoding="utf-8"), encoding="utf-8")
    environment = {**client_environment(directory, server), "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    before = len(requests(server))

    output = run_client([client.interpreter, program, QUESTION, NEXT_QUESTION, client.api], directory, environment)

    result = json.loads(output)
    assert result["answer"] == client.answer
    assert result["calls"] == client.calls
    assert "".join(result["deltas"]) == client.streamed.replace("{answer}", client.answer)
    assert len(result["deltas"]) > 1
    assert result["next_answer"] == f"21 degrees in Berlin\n{client.temperature}"
    sent = [(line["route"], line["status"]) for line in requests(server)[before:]]
    assert sent == [(ROUTES[client.api], 200)] * client.requests
