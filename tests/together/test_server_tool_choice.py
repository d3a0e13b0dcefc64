"""A forced `tool_choice` with models that do not follow it: server process and SDK, every kind of upstream."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from fake_upstream import FakeUpstream, running_upstream
from fixtures_server import ROOT, run_server
from stream_grammar import check_stream, read_frames

from antwort.testing.model import AnswerCall, ModelAnswer

KINDS = ["chat", "responses", "scripted"]
FUNCTION = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}, "strict": False}
OTHER = {**FUNCTION, "name": "subtract"}
SQL = {"type": "custom", "name": "run_sql"}
SEARCH = {"type": "file_search", "vector_store_ids": ["vs_1"]}
TOOLS = [FUNCTION, OTHER, SQL, SEARCH]

ARGUMENTS = {"add": "{}", "subtract": "{}", "run_sql": '{"input": "SELECT 1"}', "file_search": '{"query": "apples"}'}
MADE = {"add": "function_call", "run_sql": "custom_tool_call", "file_search": "file_search_call"}

# By name: the choice, the wrong call, and the call that fulfils it.
CHOICES: dict[str, tuple[Any, str, str]] = {
    "function": ({"type": "function", "name": "add"}, "subtract", "add"),
    "custom": ({"type": "custom", "name": "run_sql"}, "add", "run_sql"),
    "hosted": ({"type": "file_search"}, "add", "file_search"),
    "allowed_tools": (
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "add"}]},
        "subtract",
        "add",
    ),
    "required": ("required", "multiply", "add"),
}


def answer(name: str | None) -> ModelAnswer:
    """A reply with one call, or with text only."""
    if name is None:
        return ModelAnswer(text="Found.")
    return ModelAnswer(calls=(AnswerCall(name, ARGUMENTS.get(name, "{}")),))


def scripted(name: str | None) -> list[dict[str, Any]]:
    return [{"text": "Found."}] if name is None else [{"call": {"name": name, "arguments": ARGUMENTS.get(name, "{}")}}]


def scripts() -> dict[str, Any]:
    """Of the scripted model: the user's text names the calls of the turns."""
    answers: list[dict[str, Any]] = [
        {"when": {"any": "never"}, "reply": scripted("subtract")},
        {"when": {"text": "text first"}, "reply": scripted(None)},
        {"when": {"text": "must call"}, "reply": scripted("add")},
    ]
    for name, (_, wrong, right) in CHOICES.items():
        replies = (wrong, right, None)
        answers += [
            {"when": {"text": f"/^{name}$/", "turn": turn}, "reply": scripted(call)}
            for turn, call in enumerate(replies, 1)
        ]
    return {"fragment": 3, "answers": answers}


@pytest.fixture(scope="module")
def upstream():
    with running_upstream() as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory, upstream):
    models = {
        "chat": {"kind": "chat_completions", "base_url": upstream.url},
        "responses": {"kind": "responses", "base_url": upstream.url},
        "scripted": {"kind": "scripted", "script": "script.yaml"},
    }
    program = ROOT / "tests" / "support" / "fake_echo_provider.py"
    directory = tmp_path_factory.mktemp("server")
    with run_server(directory, {"models": models}, script=scripts(), program=program) as running:
        yield running


@pytest.fixture
def client(server):
    with server.client() as client:
        yield client


def set_replies(upstream: FakeUpstream, *names: str | None) -> None:
    upstream.reset()
    for path, make in (("v1/chat/completions", upstream.chat), ("v1/responses", upstream.responses)):
        upstream.set_replies(*(make(answer(name)) for name in names), path=path)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("kind", KINDS)
def test_forced_tool_choice_is_enforced_when_the_model_calls_another_function(server, upstream, kind, choice):
    forced, wrong, right = CHOICES[choice]
    set_replies(upstream, wrong, right, None)
    body = {"model": kind, "input": choice, "tools": TOOLS, "tool_choice": forced, "stream": True}
    with server.http() as http:
        events = read_frames(http.post("/v1/responses", json=body).content)

    check_stream(events)
    output = events[-1]["response"]["output"]
    assert events[-1]["type"] == "response.completed"
    assert [item["type"] for item in output] == [MADE[right], *(["message"] if right == "file_search" else [])]
    assert {item["name"] for item in output if "name" in item} <= {right}
    if kind != "scripted":
        first, again = (request.body for request in upstream.requests[:2])
        assert first["tool_choice"] == again["tool_choice"]
        assert "this answer must call" in str(again)


@pytest.mark.parametrize("kind", KINDS)
def test_forced_tool_choice_is_enforced_when_the_model_calls_none(client, upstream, kind):
    set_replies(upstream, None, "add")
    forced = {"type": "function", "name": "add"}
    response = client.responses.create(model=kind, input="text first", tools=TOOLS, tool_choice=forced)

    assert [(item.type, item.name) for item in response.output] == [("function_call", "add")]
    assert (response.status, response.output_text) == ("completed", "")
    assert client.responses.retrieve(response.id).to_dict() == response.to_dict()


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_never_makes_the_forced_call_fails_the_response_and_no_wrong_call_is_sent(client, upstream, kind):
    set_replies(upstream, "subtract")
    request: dict[str, Any] = {"model": kind, "input": "never", "tools": TOOLS}
    request["tool_choice"] = {"type": "function", "name": "add"}
    with pytest.raises(openai.InternalServerError) as caught:
        client.responses.create(**request)
    with pytest.raises(openai.APIError) as streamed:
        list(client.responses.create(**request, stream=True))
    background = client.responses.create(**request, background=True, stream=True)
    with pytest.raises(openai.APIError):
        list(background)

    message = f"Model '{kind}' did not call 'add' in 3 attempts"
    for error in (caught.value, streamed.value):
        assert error.code == "tool_choice_not_followed"
        assert message in str(error)
    assert (caught.value.status_code, caught.value.response.headers["x-should-retry"]) == (502, "false")
    if kind != "scripted":
        assert len(upstream.requests) == 9
