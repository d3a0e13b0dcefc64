"""Long conversations of the OpenAI adapter with compaction, against the server process with a scripted model.

The scripted model repeats the facts that it sees, in its summaries and in its last answer. So a fact of an early turn
in the last answer has passed through all summaries since.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fake_compaction_api import unpaired
from fixtures_code_interpreter import code_server
from fixtures_server import ROOT, Server, create_key, run_server
from fixtures_workspace import CODE
from openai import BadRequestError, OpenAI
from waiting import wait_until

from weakincentives.adapters.openai import (
    CompactionConfig,
    CompactionState,
    OpenAIAdapter,
    OpenAIContainerWorkspaceSection,
    OpenAIModelConfig,
)
from weakincentives.budget import TokenUsage
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.runtime import (
    CompactionRebuilt,
    ContextCompacted,
    ModelProgress,
    Session,
    ToolInvoked,
)

THRESHOLD = 8_000
TURNS = 200
FACTS = {1: "fact-1 is harbour", 50: "fact-50 is lantern", 150: "fact-150 is cinnamon"}
FILLER = "and nothing else of interest " * 28  # 200 tokens
SEEN = "<<find /fact-[0-9]+ is [a-z]+/>>"
SUMMARIZE = {"text": "Summarize the conversation above"}

SCRIPT = {
    "answers": [
        {"when": {**SUMMARIZE, "any": "no summaries"}, "reply": [{"refusal": "I will not."}]},
        {"when": SUMMARIZE, "reply": [{"text": SEEN}]},
        {"when": {"output": "end of the book"}, "reply": [{"text": SEEN}]},
        {"when": {"tool": "read_page"}, "reply": [{"reasoning": "Go on."}, {"call": {"name": "read_page"}}]},
        {"when": {"text": "report as JSON"}, "reply": [{"text": '{"seen": "<<find /(?<=fact-1 is )[a-z]+/>>"}'}]},
        {"when": {"text": "report"}, "reply": [{"text": SEEN}]},
        {
            "when": {"text": "run code", "turn": 1},
            "reply": [
                {
                    "call": {
                        "name": "code_interpreter",
                        "arguments": {"code": "n = globals().get('n', 0) + 1; print(f'n is {n};')"},
                    }
                }
            ],
        },
        {"when": {"text": "run code", "turn": 2}, "reply": [{"text": "<<output>>"}]},
        {"reply": [{"text": "Noted."}]},
    ],
}
KEYS = {"auth": {"keys_file": "keys.json"}}


@dataclass
class Recorder:
    """The requests of an adapter to a server, as they are sent."""

    server: Server
    key: str
    sent: list[tuple[str, dict[str, Any]]] = field(default_factory=list[tuple[str, dict[str, Any]]])

    @contextmanager
    def adapter(self, config: CompactionConfig, **options: Any) -> Iterator[OpenAIAdapter]:
        http_client = httpx2.Client(event_hooks={"request": [self._record]}, trust_env=False)
        with OpenAI(base_url=f"{self.server.url}/v1", api_key=self.key, http_client=http_client, timeout=30) as client:
            yield OpenAIAdapter(model="scripted", client=client, compaction=config, **options)

    def _record(self, request: httpx2.Request) -> None:
        if request.method == "POST" and "/responses" in request.url.path:
            self.sent.append((request.url.path, json.loads(request.read())))

    def bodies(self) -> list[dict[str, Any]]:
        """The requests for responses."""
        return [body for path, body in self.sent if path == "/v1/responses"]

    def largest(self) -> int:
        """The input tokens of the largest request, counted by the server before any compaction."""
        with self.server.client(self.key) as client:
            return max(
                client.responses.input_tokens.count(
                    model="scripted", input=body["input"], tools=body.get("tools", [])
                ).input_tokens
                for body in self.bodies()
            )


@contextmanager
def keyed_server(directory: Path) -> Iterator[Server]:
    """A server with a key for each of two tenants."""
    keys = {tenant: create_key(directory, tenant, "--tenant", tenant) for tenant in ("a", "b")}
    with run_server(directory, KEYS, script=SCRIPT) as running:
        running.keys = keys
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with keyed_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def other_server(tmp_path_factory):
    """A server with other sealing keys."""
    with keyed_server(tmp_path_factory.mktemp("other")) as running:
        yield running


@pytest.fixture
def recorder(server) -> Recorder:
    return Recorder(server, server.keys["a"])


def prompt(text: str, *sections: Any, tools: Any = (), output: Any = None) -> Prompt[Any]:
    task = MarkdownSection(title="Task", key="task", template=text, tools=tools)
    template = PromptTemplate[output] if output else PromptTemplate
    return Prompt(template(ns="test", key="agent", sections=[task, *sections]))


def step(number: int) -> Prompt[Any]:
    return prompt(f"Step {number}: {FACTS.get(number, 'no fact')}. {FILLER}")


def run_steps(adapter: OpenAIAdapter, session: Session, first: int, last: int) -> None:
    for number in range(first, last + 1):
        assert adapter.evaluate(step(number), session=session).text == "Noted."


def state_of(session: Session) -> CompactionState:
    state = session[CompactionState].latest()
    assert state is not None
    return state


def check_requests(recorder: Recorder, *, zdr: bool, turn_tokens: int) -> None:
    assert [found for body in recorder.bodies() if (found := unpaired(body["input"]))] == []
    assert all(body.get("store") is False for _, body in recorder.sent) == zdr
    assert THRESHOLD // 2 < recorder.largest() <= THRESHOLD + turn_tokens


MODES = pytest.mark.parametrize("mode", ["server", "client", "auto"])
ZDR = pytest.mark.parametrize("zdr", [False, True], ids=["stored", "zdr"])


@MODES
@ZDR
def test_session_of_200_evaluations_stays_below_the_threshold_and_keeps_the_facts(recorder, mode, zdr):
    session = Session()
    with recorder.adapter(CompactionConfig(threshold_tokens=THRESHOLD, mode=mode, zdr_mode=zdr)) as adapter:
        run_steps(adapter, session, 1, TURNS)
        answer = adapter.evaluate(prompt("Now report."), session=session)

    assert set(answer.text.splitlines()) == set(FACTS.values())
    assert state_of(session).compaction_count == len(session[ContextCompacted].all()) > 4
    assert session[CompactionRebuilt].all() == ()
    check_requests(recorder, zdr=zdr, turn_tokens=300)


@dataclass(frozen=True)
class NoParams:
    pass


def book() -> Tool[NoParams, str]:
    """A tool that reads the next page."""
    pages = iter(range(1, TURNS + 1))

    def read_page(params: NoParams, *, context: ToolContext) -> ToolResult[str]:
        number = next(pages)
        end = " This is the end of the book." if number == TURNS else ""
        return ToolResult.ok(f"Page {number}: {FACTS.get(number, 'no fact')}. {FILLER}{end}")

    return Tool[NoParams, str](name="read_page", description="Read the next page.", handler=read_page)


@MODES
@ZDR
def test_evaluation_of_200_tool_calls_stays_below_the_threshold_and_keeps_the_facts(recorder, mode, zdr):
    session = Session()
    config = CompactionConfig(threshold_tokens=THRESHOLD, mode=mode, zdr_mode=zdr)
    with recorder.adapter(config, max_turns=TURNS + 10) as adapter:
        answer = adapter.evaluate(prompt("Read the book.", tools=[book()]), session=session)

    assert set(answer.text.splitlines()) == set(FACTS.values())
    assert answer.turns == len(session[ToolInvoked].all()) + 1 == TURNS + 1
    assert state_of(session).compaction_count == len(session[ContextCompacted].all()) > 4
    assert session[CompactionRebuilt].all() == ()
    check_requests(recorder, zdr=zdr, turn_tokens=300)
