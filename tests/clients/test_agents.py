"""One small agent of each client library, unmodified: a function, the code interpreter, streams, and a second question.

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
ANSWER = "It is 69.8 °F in Berlin."

SCRIPT = {
    "fragment": 5,
    "answers": [
        # The city is in the output of the function, the temperature in the answer: both are in the history.
        {"when": {"text": NEXT_QUESTION}, "reply": [{"text": "<<find /21 degrees in Berlin|69\\.8 °F/>>"}]},
        {"when": {"output": "69.8"}, "reply": [{"text": "It is <<find /69\\.8/>> °F in Berlin."}]},
        {"when": {"output": "21 degrees"}, "reply": [call("print(21 * 9 / 5 + 32)")]},
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
    """A program and its interpreter, the calls that it reports, and the number of its requests."""

    program: str
    interpreter: Path
    calls: list[str]
    requests: int


AGENTS_SDKS = [
    Client(
        "openai_agents.py",
        DEVELOPMENT_PYTHON,
        ["transfer_to_forecaster", "get_weather", "code_interpreter"],
        requests=7,
    ),
    Client("openai_agents.mjs", NODE, ["transfer_to_forecaster", "get_weather", "code_interpreter_call"], requests=7),
]
LIBRARIES = [
    Client("ai_sdk.mjs", NODE, ["get_weather", "code_interpreter"], requests=5),
    Client("langchain_agent.py", CLIENTS_PYTHON, ["get_weather", "code_interpreter"], requests=5),
    Client("pydantic_ai_agent.py", CLIENTS_PYTHON, ["get_weather", "code_execution"], requests=5),
    Client("llama_index_agent.py", CLIENTS_PYTHON, ["get_weather"], requests=3),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with code_server("local", tmp_path_factory.mktemp("server"), script=SCRIPT) as running:
        yield running


@pytest.mark.parametrize("client", AGENTS_SDKS, ids=lambda client: client.program)
def test_agents_sdk_runs_with_no_model_named(client, server, tmp_path):
    check_agent(client, server, tmp_path)


@pytest.mark.parametrize("client", LIBRARIES, ids=lambda client: client.program)
def test_agent_of_a_library_runs_with_a_model_name_of_openai(client, server, tmp_path):
    check_agent(client, server, tmp_path)


def check_agent(client: Client, server: Server, directory: Path) -> None:
    """Run the agent, and check the answers at once, streamed and to the second question, and the requests."""
    (directory / "node_modules").symlink_to(NODE_MODULES)
    program = directory / client.program
    program.write_text((PROGRAMS / client.program).read_text(encoding="utf-8"), encoding="utf-8")
    environment = {**client_environment(directory, server), "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    before = len(requests(server))

    output = run_client([client.interpreter, program, QUESTION, NEXT_QUESTION], directory, environment)

    result = json.loads(output)
    assert result["answer"] == ANSWER
    assert result["calls"] == client.calls
    assert "".join(result["deltas"]) == ANSWER
    assert len(result["deltas"]) > 1
    assert result["next_answer"] == "21 degrees in Berlin\n69.8 °F"
    assert [line["status"] for line in requests(server)[before:]] == [200] * client.requests
