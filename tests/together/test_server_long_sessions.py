"""Agents of 200 turns with a compaction threshold of 8,000 tokens, through a server process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
from fake_upstream import CannedReply, FakeUpstream, ReceivedRequest
from fixtures_code_interpreter import AUTO, OUTPUTS, call, code_server
from fixtures_server import run_server

from antwort.testing.model import AnswerCall, ModelAnswer

pytestmark = pytest.mark.long

THRESHOLD = 8000
MAX_TURN = 400
"""Tokens that one turn of these agents can add."""
TURNS = 200
MANAGED = [{"type": "compaction", "compact_threshold": THRESHOLD}]
PLANTED = {1: "FACT-1-oak", 50: "FACT-50-elm", 150: "FACT-150-ash"}
FACT = "FACT-[0-9]+-[a-z]+"
IS_SUMMARY = "Summarize the conversation above"
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False}

SCRIPT = {
    "answers": [
        {"when": {"text": f"/^{IS_SUMMARY}/"}, "reply": [{"text": f"Facts:\n<<find /{FACT}/>>"}]},
        {"when": {"text": "recall"}, "reply": [{"text": f"<<find /{FACT}/>>"}]},
        {"reply": [{"text": "Noted. " + "I continue with the next step. " * 16}]},
    ],
}


def prompt(turn: int) -> str:
    if turn == TURNS:
        return "recall"
    return f"Turn {turn}: {PLANTED.get(turn, 'nothing new')}. " + "Do the next step of the plan. " * 16


class Agent:
    """A client that sends one message for each turn."""

    def __init__(self, http: httpx2.Client, **fields: Any) -> None:
        self.http = http
        self.fields = {"context_management": MANAGED, **fields}
        self.responses: list[Any] = []

    def ask(self, *given: Any) -> Any:
        answer = self.http.post("/v1/responses", json={"model": "m", "input": list(given), **self.fields})
        assert answer.status_code == 200, answer.text
        response = answer.json()
        self.responses.append(response)
        return response


class ChainedAgent(Agent):
    """With `previous_response_id`."""

    def ask(self, *given: Any) -> Any:
        response = super().ask(*given)
        self.fields["previous_response_id"] = response["id"]
        return response


class StatelessAgent(Agent):
    """With `store: false`. It sends its window with each request, and drops what is before a compaction item or not."""

    def __init__(self, http: httpx2.Client, *, is_pruned: bool, **fields: Any) -> None:
        super().__init__(http, store=False, **fields)
        self.is_pruned = is_pruned
        self.window: list[Any] = []

    def ask(self, *given: Any) -> Any:
        response = super().ask(*self.window, *given)
        self.window += [*given, *response["output"]]
        if self.is_pruned:
            at = max((at for at, item in enumerate(self.window) if item["type"] == "compaction"), default=0)
            self.window = self.window[at:]
        return response


class CompactingAgent(StatelessAgent):
    """A client that asks for compactions itself: with the endpoint, or with a trigger and all its messages kept."""

    def __init__(self, http: httpx2.Client, *, with_endpoint: bool) -> None:
        super().__init__(http, is_pruned=False, context_management=None)
        self.with_endpoint = with_endpoint
        self.compactions = 0

    def ask(self, *given: Any) -> Any:
        response = super().ask(*given)
        if response["usage"]["total_tokens"] > THRESHOLD:
            self.compactions += 1
            if self.with_endpoint:
                self.window = self.http.post("/v1/responses/compact", json=self._request()).json()["output"]
            else:
                compacted = self.http.post("/v1/responses", json=self._request({"type": "compaction_trigger"})).json()
                self.window = [item for item in self.window if item.get("role") == "user"] + compacted["output"]
        return response

    def _request(self, *added: Any) -> dict[str, Any]:
        return {"model": "m", "input": [*self.window, *added], "store": False}


def agent_of(kind: str, http: httpx2.Client, **fields: Any) -> Agent:
    return ChainedAgent(http, **fields) if kind == "chained" else StatelessAgent(http, is_pruned=True, **fields)


def message(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


def has_compaction(response: Any) -> bool:
    return any(item["type"] == "compaction" for item in response["output"])


def text_of_answer(response: Any) -> str:
    return response["output"][-1]["content"][0]["text"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    models = {"m": {"kind": "scripted", "script": "script.yaml"}}
    budgets = {"summary_tokens": 1000, "user_message_tokens": 2000, "tool_output_tokens": 1000}
    config = {"models": models, "compaction": budgets}
    with run_server(tmp_path_factory.mktemp("server"), config, script=SCRIPT) as running:
        yield running


@pytest.mark.parametrize("kind", ["chained", "conversation", "pruned", "kept"])
def test_an_agent_of_200_turns_finishes_and_remembers(server, kind):
    with server.http() as http:
        if kind == "chained":
            agent = ChainedAgent(http)
        elif kind == "conversation":
            agent = Agent(http, conversation=http.post("/v1/conversations", json={}).json()["id"])
        else:
            agent = StatelessAgent(http, is_pruned=kind == "pruned")
        for turn in range(1, TURNS + 1):
            agent.ask(message(prompt(turn)))

    plain = [response for response in agent.responses if not has_compaction(response)]
    assert all(response["status"] == "completed" for response in agent.responses)
    assert max(response["usage"]["input_tokens"] for response in plain) <= THRESHOLD + MAX_TURN
    assert 5 <= TURNS - len(plain) <= 40
    assert sorted(text_of_answer(agent.responses[-1]).split()) == sorted(PLANTED.values())


@pytest.mark.parametrize("with_endpoint", [True, False], ids=["endpoint", "trigger"])
def test_an_agent_that_compacts_by_itself_finishes_and_remembers(server, with_endpoint):
    with server.http() as http:
        agent = CompactingAgent(http, with_endpoint=with_endpoint)
        for turn in range(1, TURNS + 1):
            agent.ask(message(prompt(turn)))

    assert max(response["usage"]["input_tokens"] for response in agent.responses) <= THRESHOLD + MAX_TURN
    assert 5 <= agent.compactions <= 40
    assert sorted(text_of_answer(agent.responses[-1]).split()) == sorted(PLANTED.values())


# ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class ThinkingUpstream(FakeUpstream):
    """A chat completions server that calls the function in each turn, and summarizes by copying facts."""

    def reply_to(self, request: ReceivedRequest) -> CannedReply | None:
        messages = request.body.get("messages")
        if not (messages and request.path.endswith("chat/completions")):
            return None
        facts = "\n".join(dict.fromkeys(re.findall(FACT, json.dumps(messages))))
        last = messages[-1]
        if is_summary_request(request.body):
            return self.chat(ModelAnswer(text=f"Facts:\n{facts}"))
        if last["role"] == "tool":
            return self.chat(ModelAnswer(text=facts if "recall" in text_of(last) else "Noted."))
        return self.chat(ModelAnswer(calls=(AnswerCall("look", "{}"), AnswerCall("look", '{"more": true}'))))


def text_of(sent: dict[str, Any]) -> str:
    content = sent.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


class SmallUpstream(ThinkingUpstream):
    """The same with a context window, of which the server knows nothing."""

    max_chars = 12_000

    def reply_to(self, request: ReceivedRequest) -> CannedReply | None:
        if len(json.dumps(request.body.get("messages"))) <= self.max_chars:
            return super().reply_to(request)
        error = {"message": "maximum context length", "type": "invalid_request_error"}
        return self.json({"error": {**error, "code": "context_length_exceeded"}}, 400)


class StuckUpstream(ThinkingUpstream):
    """The same, but it never ends a summary."""

    def reply_to(self, request: ReceivedRequest) -> CannedReply | None:
        reply = super().reply_to(request)
        if reply is not None and is_summary_request(request.body):
            reply.pause = 600
        return reply


def is_summary_request(body: dict[str, Any]) -> bool:
    return text_of(body["messages"][-1]).startswith(IS_SUMMARY)


@contextmanager
def running(upstream: ThinkingUpstream) -> Iterator[ThinkingUpstream]:
    upstream.start()
    try:
        yield upstream
    finally:
        upstream.stop()


def check_pairs(messages: list[dict[str, Any]]) -> None:
    """Every call is followed by its outputs, and every output follows its call."""
    waiting: list[str] = []
    for sent in messages:
        if sent["role"] == "tool":
            assert sent["tool_call_id"] in waiting
            waiting.remove(sent["tool_call_id"])
        else:
            assert waiting == []
            waiting = [one["id"] for one in sent.get("tool_calls") or ()]
    assert waiting == []


@pytest.mark.parametrize("kind", ["chained", "pruned"])
def test_calls_and_outputs_stay_paired_in_every_request(tmp_path, kind):
    with running(ThinkingUpstream()) as upstream:
        models = {"m": {"kind": "chat_completions", "base_url": upstream.url, "tokenizer": "estimate"}}
        with run_server(tmp_path, {"models": models}) as server, server.http() as http:
            agent = agent_of(kind, http, tools=[LOOK], instructions="Always be exact.")
            look_things_up(agent, TURNS)

    chats = [request.body for request in upstream.requests if request.path.endswith("chat/completions")]
    assert sorted(text_of_answer(agent.responses[-1]).split()) == sorted(PLANTED.values())
    assert 5 <= sum(map(has_compaction, agent.responses)) <= 60
    for body in chats:
        check_pairs(body["messages"])
        assert text_of(body["messages"][0]) == "Always be exact."
        assert len(json.dumps(body["messages"])) / 4 < 1.5 * THRESHOLD
    assert sum(map(is_summary_request, chats)) == sum(map(has_compaction, agent.responses))


def look_things_up(agent: Agent, turns: int, repeated: int = 1) -> None:
    """So many turns, each with two calls of the function."""
    for turn in range(1, turns + 1):
        response = agent.ask(message(f"Turn {turn}"))
        calls = [item for item in response["output"] if item["type"] == "function_call"]
        assert len(calls) == 2
        found = prompt(turn) * repeated
        agent.ask(*({"type": "function_call_output", "call_id": one["call_id"], "output": found} for one in calls))


@pytest.mark.parametrize("kind", ["chained", "pruned"])
def test_an_agent_outlives_a_context_window_that_the_server_does_not_know(tmp_path, kind):
    with running(SmallUpstream()) as upstream:
        models = {"m": {"kind": "chat_completions", "base_url": upstream.url, "tokenizer": "estimate"}}
        with run_server(tmp_path, {"models": models}) as server, server.http() as http:
            managed = [{"type": "compaction", "compact_threshold": 100_000}]
            agent = agent_of(kind, http, tools=[LOOK], context_management=managed, instructions="Be exact.")
            look_things_up(agent, 40, repeated=3)

    assert all(response["status"] == "completed" for response in agent.responses)
    assert sum(map(has_compaction, agent.responses)) >= 5
    chats = [request.body["messages"] for request in upstream.requests if request.path.endswith("chat/completions")]
    for messages in chats:
        check_pairs(messages)
        assert text_of(messages[0]) == "Be exact."
    assert any(text_of(sent) == "Turn 40" for sent in chats[-1])


def test_a_summary_that_never_ends_is_replaced_by_an_extract(tmp_path):
    with running(StuckUpstream()) as upstream:
        model = {"kind": "chat_completions", "base_url": upstream.url, "timeout": 1, "attempts": 1}
        models = {"m": {**model, "tokenizer": "estimate"}}
        with run_server(tmp_path, {"models": models}) as server, server.http() as http:
            managed = [{"type": "compaction", "compact_threshold": 1000}]
            agent = ChainedAgent(http, tools=[LOOK], context_management=managed)
            look_things_up(agent, 1, repeated=6)

    [note] = [response["antwort:compaction"] for response in agent.responses if has_compaction(response)]
    assert note["method"] == "extract"
    assert note["reason"].startswith("The model failed to write a summary: ")
    assert agent.responses[-1]["status"] == "completed"


# ── containers ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["chained", "pruned"])
def test_the_container_of_before_is_used_after_a_compaction(tmp_path, kind):
    script = {
        "answers": [
            {"when": {"text": f"/^{IS_SUMMARY}/"}, "reply": [{"text": "The container has x."}]},
            {"when": {"text": "/^# run/", "turn": 1}, "reply": [call("<<text>>")]},
            {"reply": [{"text": "Done: <<output>>"}]},
        ]
    }
    managed = [{"type": "compaction", "compact_threshold": 1000}]
    fields: dict[str, Any] = {"tools": [AUTO], "include": OUTPUTS, "context_management": managed}
    models = {"m": {"kind": "scripted", "script": "script.yaml"}}
    with code_server("local", tmp_path, script=script, models=models) as server, server.http() as http:
        agent = agent_of(kind, http, **fields)
        agent.ask(message("# run\nx = 1"))
        for _ in range(8):
            agent.ask(message("# run\nx += 1; print('log ' * 200)"))
        last = agent.ask(message("# run\nprint('x is', x)"))

    calls = [
        item for response in agent.responses for item in response["output"] if item["type"] == "code_interpreter_call"
    ]
    assert sum(map(has_compaction, agent.responses)) >= 2
    assert len({item["container_id"] for item in calls}) == 1
    assert "x is 9" in str(last["output"])
