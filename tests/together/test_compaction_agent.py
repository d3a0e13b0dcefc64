"""Long conversations of the OpenAI adapter with compaction, against the server process with a scripted model.

The scripted model repeats the facts that it sees, in its summaries and in its last answer. So a fact of an early turn
in the last answer has passed through all summaries since.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
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
    CompactionManager,
    CompactionState,
    OpenAIAdapter,
    OpenAIContainerWorkspaceSection,
    OpenAIModelConfig,
)
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.runtime import (
    CompactionRebuilt,
    ContextCompacted,
    ModelProgress,
    Session,
    ToolInvoked,
)

THRESHOLD, LOW_THRESHOLD = 8_000, 4_000
TURNS = 200
FACTS = {1: "fact-1 is harbour", 50: "fact-50 is lantern", 150: "fact-150 is cinnamon"}
FILLER = "and nothing else of interest " * 28  # 200 tokens
TURN_TOKENS = 300
SEEN = "<<find /fact-[0-9]+ is [a-z]+/>>"
SUMMARIZE = {"text": "Summarize the conversation above"}

SCRIPT = {
    "answers": [
        {"when": {**SUMMARIZE, "any": "no summaries"}, "reply": [{"refusal": "I will not."}]},
        {"when": SUMMARIZE, "reply": [{"text": SEEN}]},
        {"when": {"text": "dump it", "turn": 1}, "reply": [{"call": {"name": "dump"}}] * 3},
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

    def counts(self) -> list[int]:
        """The input tokens of each request, counted by the server before any compaction; without refused ones."""
        with self.server.client(self.key) as client:
            return [count for body in self.bodies() if (count := _count(client, body)) is not None]


def _count(client: Any, body: dict[str, Any]) -> int | None:
    given = {"model": "scripted", "input": body["input"], "tools": body.get("tools", [])}
    try:
        return client.responses.input_tokens.count(**given).input_tokens
    except BadRequestError as error:
        if error.code != "invalid_encrypted_content":
            raise
        return None


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


def deltas_of(session: Session) -> list[ModelProgress]:
    """The progress events of the session from now on."""
    deltas: list[ModelProgress] = []
    session.dispatcher.subscribe(ModelProgress, deltas.append)
    return deltas


def check_requests(recorder: Recorder, session: Session, mode: str, *, zdr: bool) -> None:
    """Calls have outputs, nothing is stored with `zdr`, and no request exceeds the threshold by more than a turn."""
    assert [found for body in recorder.bodies() if (found := unpaired(body["input"]))] == []
    assert all(body.get("store") is False for _, body in recorder.sent) == zdr
    counts = recorder.counts()
    assert len(counts) == len(recorder.bodies())
    assert THRESHOLD // 2 < max(counts) <= THRESHOLD + TURN_TOKENS
    compactions = session[ContextCompacted].all()
    assert {event.mode for event in compactions} == {"client" if mode == "client" else "server"}
    before = [event.tokens_before for event in compactions]
    assert THRESHOLD <= min(before) <= max(before) <= THRESHOLD + TURN_TOKENS


FORMS = pytest.mark.parametrize("mode", ["server", pytest.param("client", marks=pytest.mark.long)])
ZDR = pytest.mark.parametrize("zdr", [False, True], ids=["stored", "zdr"])


@pytest.mark.long
@pytest.mark.parametrize("mode, zdr", [("server", False), ("client", True), ("auto", True)])
def test_session_of_200_evaluations_stays_below_the_threshold_and_keeps_the_facts(recorder, mode, zdr):
    session = Session()
    with recorder.adapter(CompactionConfig(threshold_tokens=THRESHOLD, mode=mode, zdr_mode=zdr)) as adapter:
        run_steps(adapter, session, 1, TURNS)
        answer = adapter.evaluate(prompt("Now report."), session=session)

    assert set(answer.text.splitlines()) == set(FACTS.values())
    assert state_of(session).compaction_count == len(session[ContextCompacted].all()) > 4
    assert session[CompactionRebuilt].all() == ()
    check_requests(recorder, session, mode, zdr=zdr)


@dataclass(frozen=True)
class NoParams:
    pass


def book(pages: int = TURNS, on_page: Callable[[int], object] = lambda number: None) -> Tool[NoParams, str]:
    """A tool that reads the next page."""
    numbers = iter(range(1, pages + 1))

    def read_page(params: NoParams, *, context: ToolContext) -> ToolResult[str]:
        number = next(numbers)
        on_page(number)
        end = " This is the end of the book." if number == pages else ""
        return ToolResult.ok(f"Page {number}: {FACTS.get(number, 'no fact')}. {FILLER}{end}")

    return Tool[NoParams, str](name="read_page", description="Read the next page.", handler=read_page)


@pytest.mark.long
@pytest.mark.parametrize("mode, zdr", [("server", True), ("client", False), ("auto", False)])
def test_evaluation_of_200_tool_calls_stays_below_the_threshold_and_keeps_the_facts(recorder, mode, zdr):
    session = Session()
    config = CompactionConfig(threshold_tokens=THRESHOLD, mode=mode, zdr_mode=zdr)
    with recorder.adapter(config, max_turns=TURNS + 10) as adapter:
        answer = adapter.evaluate(prompt("Read the book.", tools=[book()]), session=session)

    assert set(answer.text.splitlines()) == set(FACTS.values())
    assert answer.turns == len(session[ToolInvoked].all()) + 1 == TURNS + 1
    assert state_of(session).compaction_count == len(session[ContextCompacted].all()) > 4
    assert session[CompactionRebuilt].all() == ()
    check_requests(recorder, session, mode, zdr=zdr)


@FORMS
def test_workspace_keeps_its_container_and_variables(tmp_path_factory, mode):
    with code_server("local", tmp_path_factory.mktemp("code"), script=SCRIPT) as server:
        recorder, session = Recorder(server, "none"), Session()
        config = CompactionConfig(threshold_tokens=2_000, mode=mode, zdr_mode=True)
        workspace = OpenAIContainerWorkspaceSection(session=session)
        with recorder.adapter(config, hosted_tools=CODE) as adapter, workspace:
            answers = [
                adapter.evaluate(prompt(f"Please run code. {FILLER}", workspace), session=session).text
                for _ in range(30)
            ]
            with server.client() as client:
                (container,) = client.containers.list()

    assert answers == [f"n is {number};\n" for number in range(1, 31)]
    assert state_of(session).compaction_count > 3
    tools = [body["tools"] for body in recorder.bodies()]
    assert {tool["container"] for declared in tools for tool in declared} == {container.id}


@pytest.mark.long
@FORMS
def test_session_with_code_moves_to_another_server(tmp_path, mode):
    """Calls in a container of the first server stay in the history; code runs in a new one."""
    with (
        code_server("local", tmp_path / "one", script=SCRIPT) as one,
        code_server("local", tmp_path / "two", script=SCRIPT) as two,
    ):
        session, config = Session(), CompactionConfig(threshold_tokens=2_000, mode=mode, zdr_mode=True)
        answers: list[str] = []
        for server in (one, two):
            with Recorder(server, "none").adapter(config, hosted_tools=CODE) as adapter:
                task = prompt(f"Please run code. {FILLER}")
                answers += [adapter.evaluate(task, session=session).text for _ in range(10)]

    assert answers == 2 * [f"n is {number};\n" for number in range(1, 11)]
    assert len(session[CompactionRebuilt].all()) == 1


def rotate_keys(server: Server) -> None:
    command = [sys.executable, "-m", "antwort", "keys", "rotate-compaction", "--config", "antwort.yaml", "--keep", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run(command, cwd=server.directory, env=environment, capture_output=True, check=True)


def is_refused(server: Server, key: str, session: Session) -> bool:
    """Whether the server cannot open the window of the session any more."""
    with server.client(key) as client:
        return _count(client, {"input": list(state_of(session).window)}) is None


@FORMS
@pytest.mark.parametrize("stream", [False, True], ids=["blocking", "stream"])
def test_dropped_key_leads_to_one_rebuild(mode, stream, tmp_path):
    with keyed_server(tmp_path) as server:
        session, recorder = Session(), Recorder(server, server.keys["a"])
        deltas = deltas_of(session)
        config = CompactionConfig(threshold_tokens=LOW_THRESHOLD, mode=mode, zdr_mode=True)
        with recorder.adapter(config, model_config=OpenAIModelConfig(stream=stream)) as adapter:
            run_steps(adapter, session, 1, 60)
            assert state_of(session).compaction_count > 1
            rotate_keys(server)
            wait_until(lambda: is_refused(server, server.keys["a"], session))
            answer = adapter.evaluate(prompt("Now report."), session=session)
            run_steps(adapter, session, 61, 160)
            last = adapter.evaluate(prompt("Now report."), session=session)

    (rebuilt,) = session[CompactionRebuilt].all()
    assert not rebuilt.truncated
    assert "invalid_encrypted_content" in rebuilt.reason or "could not be verified" in rebuilt.reason
    assert set(answer.text.splitlines()) == {FACTS[1], FACTS[50]}
    assert set(last.text.splitlines()) == set(FACTS.values())
    assert bool(deltas) == stream


@FORMS
def test_key_is_dropped_during_an_evaluation(mode, tmp_path):
    with keyed_server(tmp_path) as server:
        session, recorder = Session(), Recorder(server, server.keys["a"])

        def drop_key(number: int) -> None:
            if number == 100:
                rotate_keys(server)
                with server.client(server.keys["a"]) as client:
                    wait_until(lambda: _count(client, recorder.bodies()[-1]) is None)

        config = CompactionConfig(threshold_tokens=LOW_THRESHOLD, mode=mode, zdr_mode=True)
        with recorder.adapter(config, max_turns=130) as adapter:
            answer = adapter.evaluate(prompt("Read the book.", tools=[book(120, drop_key)]), session=session)
            counts = recorder.counts()

    assert set(answer.text.splitlines()) == {FACTS[1], FACTS[50]}
    assert len(session[CompactionRebuilt].all()) == 1
    assert max(counts) <= LOW_THRESHOLD + TURN_TOKENS
    assert [found for body in recorder.bodies() if (found := unpaired(body["input"]))] == []


def test_dropped_key_of_encrypted_reasoning(tmp_path):
    """There is no compaction item yet, but the reasoning items of a stateless client are encrypted too."""
    with keyed_server(tmp_path) as server:
        session, recorder = Session(), Recorder(server, server.keys["a"])
        config = CompactionConfig(threshold_tokens=100_000, zdr_mode=True)
        with recorder.adapter(config) as adapter:
            adapter.evaluate(prompt("Read the book.", tools=[book(5)]), session=session)
            rotate_keys(server)
            wait_until(lambda: is_refused(server, server.keys["a"], session))
            answer = adapter.evaluate(prompt("Now report."), session=session)

    assert answer.text == FACTS[1]
    assert len(session[CompactionRebuilt].all()) == 1
    assert session[ContextCompacted].all() == ()


@pytest.mark.long
@FORMS
def test_session_moves_to_another_server(recorder, other_server, mode):
    """Only the base URL changes. Back at the first server, the items of the second are dead."""
    session = Session()
    config = CompactionConfig(threshold_tokens=LOW_THRESHOLD, mode=mode)
    elsewhere = Recorder(other_server, other_server.keys["a"])
    with recorder.adapter(config) as adapter, elsewhere.adapter(config) as other_adapter:
        run_steps(adapter, session, 1, 60)
        run_steps(other_adapter, session, 61, 120)
        assert len(session[CompactionRebuilt].all()) == 1
        run_steps(adapter, session, 121, 180)
        answer = adapter.evaluate(prompt("Now report."), session=session)

    assert set(answer.text.splitlines()) == set(FACTS.values())
    assert len(session[CompactionRebuilt].all()) == 2
    assert not any(event.truncated for event in session[CompactionRebuilt].all())
    assert max(*recorder.counts(), *elsewhere.counts()) <= LOW_THRESHOLD + TURN_TOKENS
    assert len(recorder.bodies()) - len(recorder.counts()) == 1  # refused
    assert len(elsewhere.bodies()) - len(elsewhere.counts()) == 1


@FORMS
def test_window_of_another_tenant_is_rebuilt(server, recorder, mode):
    session = Session()
    config = CompactionConfig(threshold_tokens=LOW_THRESHOLD, mode=mode, zdr_mode=True)
    with recorder.adapter(config) as adapter:
        run_steps(adapter, session, 1, 60)
    assert is_refused(server, server.keys["b"], session)
    own_items = state_of(session).encrypted_items
    other_tenant = Recorder(server, server.keys["b"])
    with other_tenant.adapter(config) as adapter:
        answer = adapter.evaluate(prompt("Now report."), session=session)

    assert set(answer.text.splitlines()) == {FACTS[1], FACTS[50]}
    assert len(session[CompactionRebuilt].all()) == 1
    first, *repeated = other_tenant.bodies()
    assert [item for item in own_items if item in first["input"]] == list(own_items)
    assert [item for body in repeated for item in own_items if item in body["input"]] == []


@dataclass(frozen=True)
class Report:
    seen: str


@FORMS
@pytest.mark.parametrize("stream", [False, True], ids=["blocking", "stream"])
def test_structured_output_after_compactions(recorder, mode, stream):
    session = Session()
    deltas = deltas_of(session)
    config = CompactionConfig(threshold_tokens=2_000, mode=mode)
    with recorder.adapter(config, model_config=OpenAIModelConfig(stream=stream)) as adapter:
        run_steps(adapter, session, 1, 30)
        answer = adapter.evaluate(prompt("Now report as JSON.", output=Report), session=session)

    assert answer.output == Report("harbour")
    assert state_of(session).compaction_count > 1
    assert all(body.get("stream", False) == stream for body in recorder.bodies())
    assert bool(deltas) == stream


@FORMS
def test_model_that_refuses_to_summarize(recorder, mode):
    """An extract takes the place of the summary: the session goes on, and its newest part is intact."""
    session = Session()
    config = CompactionConfig(threshold_tokens=THRESHOLD, mode=mode)
    with recorder.adapter(config) as adapter:
        adapter.evaluate(prompt(f"There are no summaries. {FACTS[1]}."), session=session)
        for number in range(2, 100):
            adapter.evaluate(prompt(f"There are no summaries. Step {number}. {FILLER}"), session=session)
        adapter.evaluate(prompt(f"There are no summaries. {FACTS[150]}."), session=session)
        answer = adapter.evaluate(prompt("Now report."), session=session)

    assert FACTS[150] in answer.text
    assert state_of(session).compaction_count > 3
    assert max(recorder.counts()) <= THRESHOLD + TURN_TOKENS


@FORMS
def test_snapshot_before_a_compaction_can_be_restored_after_it(recorder, mode):
    session = Session()
    config = CompactionConfig(threshold_tokens=2_000, mode=mode)
    with recorder.adapter(config) as adapter:
        run_steps(adapter, session, 49, 60)
        snapshot, before = session.snapshot(), state_of(session)
        assert before.compaction_count > 0
        run_steps(adapter, session, 149, 160)
        assert state_of(session).compaction_count > before.compaction_count
        later = adapter.evaluate(prompt("Now report."), session=session)
        session.restore(snapshot)
        assert state_of(session) == before
        restored = adapter.evaluate(prompt("Now report."), session=session)

    assert set(later.text.splitlines()) == {FACTS[50], FACTS[150]}
    assert restored.text == FACTS[50]
    assert session[CompactionRebuilt].all() == ()


def test_snapshot_of_an_earlier_process_continues(recorder):
    """A new session with the snapshot of another one, and a new adapter."""
    session, config = Session(), CompactionConfig(threshold_tokens=2_000)
    with recorder.adapter(config) as adapter:
        run_steps(adapter, session, 1, 20)
    snapshot, session = session.snapshot(), Session(session_id=session.session_id)
    session.restore(snapshot)
    with recorder.adapter(config) as adapter:
        run_steps(adapter, session, 21, 60)
        answer = adapter.evaluate(prompt("Now report."), session=session)

    assert set(answer.text.splitlines()) == {FACTS[1], FACTS[50]}
    assert state_of(session).compaction_count > 4


@FORMS
@ZDR
def test_outputs_far_above_the_threshold(recorder, mode, zdr):
    """Three parallel calls return much more than the threshold: one compaction follows, and its size is known."""

    def dump(params: NoParams, *, context: ToolContext) -> ToolResult[str]:
        return ToolResult.ok(f"{FACTS[50]}. {FILLER * 20}")

    tool = Tool[NoParams, str](name="dump", description="Write everything.", handler=dump)
    session = Session()
    with recorder.adapter(CompactionConfig(threshold_tokens=THRESHOLD, mode=mode, zdr_mode=zdr)) as adapter:
        for _ in range(4):
            adapter.evaluate(prompt(f"Please dump it. {FACTS[1]}.", tools=[tool]), session=session)
        answer = adapter.evaluate(prompt("Now report."), session=session)

    assert set(answer.text.splitlines()) == {FACTS[1], FACTS[50]}
    assert [found for body in recorder.bodies() if (found := unpaired(body["input"]))] == []
    large = [count for count in recorder.counts() if count > THRESHOLD]
    assert len(large) == 4
    before = [event.tokens_before for event in session[ContextCompacted].all()]
    assert before == pytest.approx(large, rel=0.1)


@ZDR
def test_compaction_manager_with_the_sdk_alone(server, zdr):
    session = Session()
    config = CompactionConfig(threshold_tokens=LOW_THRESHOLD, zdr_mode=zdr)  # no model: that of the server
    with server.client(server.keys["a"]) as client:
        manager = CompactionManager(client, config, session)
        messages: list[dict[str, Any]] = []
        for number in range(1, 61):
            text = f"Step {number}: {FACTS.get(number, 'no fact')}. {FILLER}"
            messages.append({"role": "user", "content": text})
            answer = client.responses.create(model="scripted", input=messages, store=not zdr)
            messages += [item.to_dict() for item in answer.output]
            if manager.should_compact(answer.usage.input_tokens):
                messages = manager.compact(messages)
        manager.compact(messages)  # keeps the messages since the last compaction too
        later = CompactionManager(client, config, session).inject_encrypted_items(
            [{"role": "user", "content": "report"}]
        )
        last = client.responses.create(model="scripted", input=later, store=not zdr)

    assert set(last.output_text.splitlines()) == {FACTS[1], FACTS[50]}
    assert manager.state.compaction_count > 2
