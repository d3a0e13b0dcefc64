"""Conformance suite of the OpenAI adapter: the same evaluations against antwort, prepared responses, and OpenAI.

With `OPENAI_API_KEY` set, `make test-openai` runs it against OpenAI too; `OPENAI_MODEL` selects the model.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from fake_responses_api import FakeResponsesApi, error, message, response, responses_api
from fixtures_adapter import AntwortBackend, Backend, OpenAIBackend, RecordedBackend, antwort_backend

from weakincentives.adapters import NamedTool
from weakincentives.adapters.openai import (
    CodeInterpreterCall,
    CodeInterpreterResult,
    ContainerFile,
    ContainerFileCitation,
    FileCitation,
    FileSearchConfig,
    McpConfig,
    OpenAIApplyPatchSection,
    OpenAICodeInterpreterSection,
    OpenAIFileSearchSection,
    OpenAIHostedToolsConfig,
    OpenAIMcpSection,
    OpenAIModelConfig,
    OpenAIShellSection,
    OpenAIWebSearchSection,
    ShellConfig,
    UrlCitation,
    WebSearchConfig,
)
from weakincentives.adapters.openai.native_tools import (
    ApplyPatchCall,
    ApplyPatchResult,
    FileSearchCall,
    McpApproval,
    McpCall,
    McpDecision,
    McpResult,
    WebSearchCall,
)
from weakincentives.adapters.openai.native_tools.registry import capabilities
from weakincentives.budget import Budget, BudgetTracker
from weakincentives.clock import ManualClock
from weakincentives.deadlines import Deadline
from weakincentives.errors import (
    ContentFilteredError,
    DeadlineExceededError,
    IncompleteAnswerError,
    NativeToolError,
    PromptEvaluationError,
    RefusalError,
)
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Section, Tool, ToolContext, ToolResult
from weakincentives.resources import ResourceRegistry
from weakincentives.runtime import InProcessDispatcher, ModelResponded, PromptExecuted, Session, ToolInvoked
from weakincentives.serde import dump
from weakincentives.tools import CommandOutput, JailedShell, ShellResult

RECORDED = Path(__file__).parents[2].parent / "shared" / "reference"

needs_jail = pytest.mark.skipif(JailedShell.unavailable_reason() is not None, reason="this host cannot build a jail")


@pytest.fixture(scope="module")
def antwort(tmp_path_factory) -> Iterator[AntwortBackend]:
    with antwort_backend(tmp_path_factory.mktemp("antwort")) as backend:
        yield backend


@pytest.fixture
def api() -> Iterator[FakeResponsesApi]:
    with responses_api() as fake:
        yield fake


@pytest.fixture(params=["wire", "antwort", pytest.param("openai", marks=pytest.mark.openai)])
def backend(request) -> Backend:
    if request.param == "wire":
        return RecordedBackend(request.getfixturevalue("api"))
    if request.param == "antwort":
        return request.getfixturevalue("antwort")
    return OpenAIBackend(is_selected=request.config.option.markexpr == "openai")


@pytest.mark.parametrize("options, requests", [([], 0), (["-m", "openai"], 1)])
def test_openai_backend_needs_an_option(api: FakeResponsesApi, options: list[str], requests: int):
    """In a separate process, with an API key, and with a fake server as OpenAI."""
    api.responses = FakeResponsesApi.to_responses([response(message("Hello."))])
    one = f"{__file__}::test_text_answer[openai]"
    environment = {**os.environ, "OPENAI_API_KEY": "none", "OPENAI_BASE_URL": api.url}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, one]
    ran = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)

    assert len(api.requests) == requests, ran.stdout
    assert ("1 passed" if requests else "make test-openai") in ran.stdout


@dataclass(frozen=True)
class Topic:
    topic: Annotated[str, "One word."]


@dataclass(frozen=True)
class Verdict:
    summary: Annotated[str, "One sentence."]
    score: Annotated[int, "From 1 to 5."] = 0


def look_up(params: Topic, *, context: ToolContext) -> ToolResult[str]:
    if params.topic == "coffee":
        return ToolResult.error("We have no coffee; judge without it.")
    return ToolResult.ok(f"{params.topic}: a drink, score 3")


LOOK_UP = Tool[Topic, str](name="look_up", description="Look a topic up.", handler=look_up)


def text_prompt(text: str, *sections: Section[Any]) -> Prompt[Any]:
    task = MarkdownSection(title="Task", key="task", template=text)
    return Prompt(ns="suite", key="text", sections=[task, *sections])


def verdict_prompt(text: str, *sections: Section[Any]) -> Prompt[Verdict]:
    task = MarkdownSection(title="Task", key="task", template=text, tools=[LOOK_UP])
    return Prompt(PromptTemplate[Verdict](ns="suite", key="verdict", sections=[task, *sections]))


LOOK_IT_UP = "First look up tea and coffee with the tool look_up, both at once. Then judge them."


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_text_answer(backend: Backend):
    session = Session()
    answer = backend.adapter("greet").evaluate(text_prompt("Greet me: say exactly `Hello.`"), session=session)

    assert "Hello" in answer.text
    assert (answer.output, answer.turns) == (None, 1)
    assert answer.usage.input_tokens > 0
    assert [entry.kind for entry in session.transcript()] == ["prompt", "model", "answer"]


def test_function_tools_and_structured_output(backend: Backend):
    session = Session()
    answer = backend.adapter("function_tool").evaluate(verdict_prompt(LOOK_IT_UP), session=session)

    assert isinstance(answer.output, Verdict)
    events = session[ToolInvoked].all()
    assert {event.params for event in events} == {Topic("tea"), Topic("coffee")}
    assert {(event.name, event.origin, event.provider) for event in events} == {("look_up", "client", None)}
    assert {event.params.topic: event.success for event in events} == {"tea": True, "coffee": False}
    assert all(event.call_id for event in events)
    kinds = [entry.kind for entry in session.transcript()]
    assert (kinds[0], kinds[-2:]) == ("prompt", ["model", "answer"])
    assert session[PromptExecuted].all()[0].usage == answer.usage


def test_list_output(backend: Backend):
    task = MarkdownSection(title="Task", key="task", template="Judge several teas, at least two of them.")
    prompt = Prompt(PromptTemplate[list[Verdict]](ns="suite", key="list", sections=[task]))
    answer = backend.adapter("several").evaluate(prompt, session=Session())

    assert len(answer.output) >= 2
    assert all(isinstance(one, Verdict) for one in answer.output)


@pytest.mark.parametrize("choice", ["required", NamedTool("look_up"), {"type": "function", "name": "look_up"}])
def test_required_tool_choice_ends_after_one_call(backend: Backend, choice: Any):
    session = Session()
    adapter = backend.adapter("function_tool", tool_choice=choice, max_turns=8)
    answer = adapter.evaluate(verdict_prompt(LOOK_IT_UP), session=session)

    assert isinstance(answer.output, Verdict)
    assert session[ToolInvoked].all()


def test_store_false(backend: Backend):
    adapter = backend.adapter("function_tool", model_config=OpenAIModelConfig(store=False))

    assert isinstance(adapter.evaluate(verdict_prompt(LOOK_IT_UP), session=Session()).output, Verdict)


def test_bus_gets_the_events_of_the_session(backend: Backend):
    bus, received = InProcessDispatcher(), []
    bus.subscribe(object, lambda event: received.append(type(event)))
    backend.adapter("greet").evaluate(text_prompt("Greet me."), session=Session(), bus=bus)

    assert [kind.__name__ for kind in received] == ["PromptRendered", "ModelResponded", "PromptExecuted"]


# ── errors of the response ───────────────────────────────────────────────────────────────────────────────────────────


def test_refusal_error(backend: Backend):
    with pytest.raises(RefusalError, match="I will not judge tea") as caught:
        backend.adapter("refusal").evaluate(text_prompt("Please refuse to judge tea."), session=Session())

    assert caught.value.phase == "response"


def test_incomplete_answer_error(backend: Backend):
    session = Session()
    adapter = backend.adapter("cut_off", model_config=OpenAIModelConfig(max_output_tokens=16))
    with pytest.raises(IncompleteAnswerError, match="max_output_tokens"):
        adapter.evaluate(text_prompt("Write an essay about tea."), session=session)

    assert len(session[ModelResponded].all()) == 1
    assert session[PromptExecuted].all() == ()


def test_content_filter_error(backend: Backend):
    with pytest.raises(ContentFilteredError):
        backend.adapter("content_filter").evaluate(text_prompt("Say what is forbidden."), session=Session())


def test_unknown_model_raises_with_phase_request(backend: Backend):
    with pytest.raises(PromptEvaluationError, match="model_not_found") as caught:
        backend.adapter("no such model", model="no-such-model").evaluate(text_prompt("Greet me."), session=Session())

    assert caught.value.phase == "request"


# ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_retry_after_is_honoured(backend: Backend):
    clock = ManualClock()
    answer = backend.adapter("retry", clock=clock).evaluate(text_prompt("Please retry."), session=Session())

    assert answer.text == "Here you are."
    assert clock.slept == [7]


def test_deadline_ends_a_slow_request(backend: Backend):
    with pytest.raises(DeadlineExceededError):
        backend.adapter("slowly").evaluate(
            text_prompt("FakeResponse slowly."), session=Session(), deadline=Deadline.after(0.5)
        )


def test_usage_covers_all_requests(backend: Backend):
    tracker = BudgetTracker(Budget(max_total_tokens=1_000_000))
    answer = backend.adapter("function_tool").evaluate(
        verdict_prompt(LOOK_IT_UP), session=Session(), budget_tracker=tracker
    )

    assert tracker.usage == answer.usage
    assert answer.turns >= 2


# ── native tools ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_unsupported_tool_is_named(backend: Backend):
    section = OpenAIWebSearchSection(default_params=WebSearchConfig(allowed_domains=("no domain",)))
    if isinstance(backend, RecordedBackend):
        backend.api.responses = FakeResponsesApi.to_responses(
            [error(400, "It is not available.", param="tools[0].type")]
        )
        adapter = backend.api.adapter()
    else:
        adapter = backend.adapter("refused tool")
    with pytest.raises(
        NativeToolError, match=r"tool 'web_search' .section 'openai_web_search'.: the server refuses it"
    ):
        adapter.evaluate(text_prompt("Greet me.", section), session=Session())


def test_code_interpreter(backend: Backend, tmp_path: Path):
    """Code, a function tool, structured output, and a cited file."""
    session = Session()
    adapter = backend.adapter("code_interpreter", hosted_tools=OpenAIHostedToolsConfig(code_interpreter=True))
    text = (
        "Use the python tool to print 6 * 7. Then look up `42` with look_up. Then write 42 to /mnt/data/answer.txt "
        "with python. Then answer."
    )
    answer = adapter.evaluate(verdict_prompt(text), session=session)

    assert isinstance(answer.output, Verdict)
    events = [event for event in session[ToolInvoked].all() if event.origin == "provider"]
    assert {(event.name, event.provider, event.capability) for event in events} == {
        ("code_interpreter", "openai", "code_interpreter")
    }
    first = events[0]
    assert isinstance(first.params, CodeInterpreterCall)
    assert "6" in first.params.code
    assert isinstance(first.result.value, CodeInterpreterResult)
    assert "42" in first.result.message
    assert first.rendered_output == first.result.value.logs == first.result.message
    assert (first.success, first.params.container_id) == (True, first.result.value.container_id)
    client_events = [event for event in session[ToolInvoked].all() if event.origin == "client"]
    assert [event.name for event in client_events] == ["look_up"]
    entries = [entry for entry in session.transcript() if entry.kind == "tool" and entry.origin == "provider"]
    assert entries[0].params["code"] == first.params.code
    assert entries[0].value["logs"] == first.result.message
    assert {event.result.value.container_id for event in events if event.result.value} == {first.params.container_id}
    if not isinstance(backend, OpenAIBackend):
        (cited,) = answer.citations
        assert isinstance(cited, ContainerFileCitation)
        assert (cited.container_id, cited.filename) == (first.params.container_id, "answer.txt")
        value: Any = events[1].result.value
        assert value.files == (ContainerFile(cited.container_id, cited.file_id, "answer.txt"),)
        if isinstance(backend, AntwortBackend):
            assert (first.result.value.stdout, first.result.value.stderr) == ("42\n", "")
            assert first.result.value.exit_code == 0
            assert adapter.download(cited, tmp_path).read_text(encoding="utf-8") == "42"


def test_code_interpreter_failures(backend: Backend):
    session = Session()
    adapter = backend.adapter("code_interpreter_failures")
    answer = adapter.evaluate(verdict_prompt("Divide by zero.", OpenAICodeInterpreterSection()), session=session)

    assert answer.output == Verdict("done", 3)
    raised, *more = session[ToolInvoked].all()
    value: Any = raised.result.value
    assert (raised.success, value.status) == (False, "completed")
    assert raised.rendered_output.strip().endswith("ZeroDivisionError: division by zero")
    if isinstance(backend, RecordedBackend):
        (failed,) = more
        value = failed.result.value
        assert (failed.success, value.status) == (False, "failed")
        assert failed.rendered_output.startswith("code_interpreter_call failed (failed)")


def test_file_search(backend: Backend):
    session = Session()
    section = OpenAIFileSearchSection(default_params=FileSearchConfig(("vs_1",), 5))
    answer = backend.adapter("file_search").evaluate(verdict_prompt("Find tea.", section), session=session)

    assert answer.output == Verdict("done", 3)
    (event,) = session[ToolInvoked].all()
    assert (event.name, event.call_id, event.origin) == ("file_search", "fs_1", "provider")
    assert event.params == FileSearchCall(("green tea", "tea"))
    assert event.rendered_output == "tea.md: Green tea is brewed at 80 degrees."
    value: Any = event.result.value
    assert value.results[0].score == 0.91
    assert answer.citations == (FileCitation("file-1", "tea.md", 12),)


def test_file_search_failure(backend: Backend):
    session = Session()
    hosted = OpenAIHostedToolsConfig(file_search=FileSearchConfig(("vs_1",)))
    adapter = backend.adapter("file_search_failure", hosted_tools=hosted)
    adapter.evaluate(verdict_prompt("Find tea."), session=session)

    (event,) = session[ToolInvoked].all()
    assert (event.success, event.result.value) == (False, None)
    assert "vector_store_timeout" in event.rendered_output


def test_web_search(backend: Backend):
    session = Session()
    adapter = backend.adapter("web_search", hosted_tools=OpenAIHostedToolsConfig(web_search=WebSearchConfig()))
    answer = adapter.evaluate(verdict_prompt("Search the web for the price of tea, then judge."), session=session)

    assert isinstance(answer.output, Verdict)
    events = [event for event in session[ToolInvoked].all() if event.capability == "web_search"]
    assert events
    assert {(event.name, event.origin, event.success) for event in events} == {("web_search", "provider", True)}
    assert all(isinstance(event.params, WebSearchCall) for event in events)
    if isinstance(backend, AntwortBackend):
        assert [event.params.action for event in events] == ["search", "open_page", "find_in_page"]
        (citation,) = answer.citations
        assert isinstance(citation, UrlCitation)
        assert (citation.title, answer.text[citation.start_index : citation.end_index]) == ("Tea prices", citation.url)
    if isinstance(backend, RecordedBackend):
        assert [event.params.action for event in events] == ["search", "open_page", "find_in_page"]
        assert events[0].rendered_output == "https://tea.example/prices"
        assert answer.citations == (UrlCitation("https://tea.example/prices", "Tea prices", 13, 17),)


def test_web_search_failure(backend: Backend):
    session = Session()
    adapter = backend.adapter("web_search_failure")
    adapter.evaluate(verdict_prompt("Search the web.", OpenAIWebSearchSection()), session=session)

    (event,) = session[ToolInvoked].all()
    assert (event.success, event.rendered_output) == (False, "web_search_call failed (failed): no reason given")


def test_hosted_shell(backend: Backend):
    session = Session()
    container = {"type": "auto", "memory_limit": "1g"}
    hosted = OpenAIHostedToolsConfig(others=(ShellConfig(container=container),))
    answer = backend.adapter("shell_hosted", hosted_tools=hosted).evaluate(
        verdict_prompt("Run `ls` and `cat missing` in the shell, then judge."), session=session
    )

    assert isinstance(answer.output, Verdict)
    events = [event for event in session[ToolInvoked].all() if event.capability == "shell"]
    assert {(event.name, event.origin) for event in events} == {("shell", "provider")}
    assert isinstance(events[0].result.value, ShellResult)
    if not isinstance(backend, OpenAIBackend):
        assert not any(event.success for event in events)
        assert events[0].rendered_output == (
            "a.txt\n(exit code 0)\ncat: missing: No such file or directory\n(exit code 1)"
        )


@needs_jail
def test_local_shell(backend: Backend):
    session, files = Session(), InMemoryFilesystem()
    files.write_text("notes.txt", "tea\n")
    text = "Run in the shell, in one call: `cat notes.txt` and `echo more >> notes.txt; exit 3`. Then judge."
    answer = backend.adapter("shell_local").evaluate(
        verdict_prompt(text, OpenAIShellSection()),
        session=session,
        resources=ResourceRegistry.build({Filesystem: files}),
    )

    assert isinstance(answer.output, Verdict)
    event = session[ToolInvoked].all()[0]
    assert (event.name, event.origin, event.provider, event.capability) == ("shell", "client", "openai", "shell")
    assert event.rendered_output == "tea\n(exit code 0)\n(exit code 3)"
    assert not event.success
    assert files.read_text("notes.txt") == "tea\nmore\n"  # a failed command is not rolled back
    if isinstance(backend, RecordedBackend):
        sent = backend.api.bodies[-1]["input"][-1]
        assert (sent["type"], sent["call_id"], sent["max_output_length"]) == ("shell_call_output", "call_1", 4096)
        assert [entry["outcome"]["exit_code"] for entry in sent["output"]] == [0, 3]


def test_apply_patch(backend: Backend):
    session, files = Session(), InMemoryFilesystem()
    files.write_text("src/app.py", 'def main():\n    print("old")\n')
    files.write_text("old.txt", "old")
    text = (
        'With apply_patch: in src/app.py (which is `def main():\\n    print("old")\\n`) print "new" instead of "old"; '
        "create docs/new.md; delete old.txt. Then judge."
    )
    answer = backend.adapter("apply_patch").evaluate(
        verdict_prompt(text, OpenAIApplyPatchSection()),
        session=session,
        resources=ResourceRegistry.build({Filesystem: files}),
    )

    assert isinstance(answer.output, Verdict)
    assert files.read_text("src/app.py") == 'def main():\n    print("new")\n'
    assert files.is_file("docs/new.md")
    assert not files.exists("old.txt")
    events = session[ToolInvoked].all()
    assert {(event.name, event.origin, event.capability) for event in events} == {
        ("apply_patch", "client", "apply_patch")
    }
    if isinstance(backend, RecordedBackend):
        assert [event.success for event in events] == [True, True, True, False]
        assert events[0].params == ApplyPatchCall(
            "update_file", "src/app.py", '@@ def main():\n-    print("old")\n+    print("new")\n'
        )
        assert events[0].result.value == ApplyPatchResult("update_file", "src/app.py", 1, 1)
        sent = [item for item in backend.api.bodies[-1]["input"] if item["type"] == "apply_patch_call_output"]
        assert [item["status"] for item in sent] == ["completed"] * 3 + ["failed"]
        assert "these lines are not in the file" in sent[-1]["output"]


def test_mcp(backend: Backend):
    session = Session()
    request: list[McpApproval] = []

    def approve(approval: McpApproval, context: ToolContext) -> bool:
        request.append(approval)
        return True

    docs = McpConfig(server_label="docs", server_url="https://docs.example/mcp", approve=approve)
    answer = backend.adapter("mcp").evaluate(
        verdict_prompt("Search the docs.", OpenAIMcpSection(default_params=docs)), session=session
    )

    assert answer.output == Verdict("done", 3)
    assert request == [McpApproval("docs", "search", '{"q": "tea"}')]
    approval, good, bad, worse = session[ToolInvoked].all()
    assert (approval.name, approval.origin, approval.result.value) == ("docs", "client", McpDecision(approve=True))
    assert (good.name, good.origin, good.capability) == ("docs", "provider", "mcp")
    assert (good.params, good.result.value) == (McpCall("docs", "search", '{"q": "tea"}'), McpResult("Tea is a drink."))
    assert [event.success for event in (good, bad, worse)] == [True, False, False]
    assert "mcp_tool_execution_error" in bad.rendered_output
    assert "http_error 401" in worse.rendered_output


DOCS = McpConfig(server_label="docs", server_url="https://docs.example/mcp", approve=lambda request, context: True)
EXPECTED_CALLS = {
    "code_interpreter": (OpenAICodeInterpreterSection(), "ci_1 + provider, call_1 + client, ci_2 + provider"),
    "code_interpreter_failures": (OpenAICodeInterpreterSection(), "ci_1 - provider, ci_2 - provider"),
    "file_search": (OpenAIFileSearchSection(default_params=FileSearchConfig(("vs_1",))), "fs_1 + provider"),
    "file_search_failure": (OpenAIFileSearchSection(default_params=FileSearchConfig(("vs_1",))), "fs_1 - provider"),
    "web_search": (OpenAIWebSearchSection(), "ws_1 + provider, ws_2 + provider, ws_3 + provider"),
    "web_search_failure": (OpenAIWebSearchSection(), "ws_1 - provider"),
    "shell_hosted": (
        OpenAIShellSection(default_params=ShellConfig(container={"type": "auto"})),
        "call_1 - provider, call_2 - provider",
    ),
    "shell_local": (
        OpenAIShellSection(default_params=ShellConfig(executor=lambda call, *, context: [CommandOutput("tea")] * 2)),
        "call_1 + client",
    ),
    "apply_patch": (OpenAIApplyPatchSection(), "call_1 + client, call_2 + client, call_3 + client, call_4 - client"),
    "mcp": (
        OpenAIMcpSection(default_params=DOCS),
        "mcpr_1 + client, mcp_1 + provider, mcp_2 - provider, mcp_3 - provider",
    ),
}


@pytest.mark.parametrize("scenario", EXPECTED_CALLS)
def test_events_have_the_same_fields_for_client_and_provider_tools(api: FakeResponsesApi, scenario: str):
    """Call id, success and origin in order; the transcript has all fields of the events."""
    section, expected = EXPECTED_CALLS[scenario]
    session, files = Session(), InMemoryFilesystem()
    files.write_text("src/app.py", 'def main():\n    print("old")\n')
    files.write_text("old.txt", "old")
    resources = ResourceRegistry.build({Filesystem: files})
    answer = (
        RecordedBackend(api)
        .adapter(scenario)
        .evaluate(verdict_prompt("Judge.", section), session=session, resources=resources)
    )

    assert isinstance(answer.output, Verdict)
    events = session[ToolInvoked].all()
    assert ", ".join(f"{one.call_id} {'+' if one.success else '-'} {one.origin}" for one in events) == expected
    entries = [entry for entry in session.transcript() if entry.kind == "tool"]
    for event, entry in zip(events, entries, strict=True):
        assert is_dataclass(event.params)
        assert (entry.name, entry.call_id, entry.success) == (event.name, event.call_id, event.success)
        assert (entry.origin, entry.provider, entry.capability) == (event.origin, event.provider, event.capability)
        assert (entry.params, entry.value) == (dump(event.params), dump(event.result.value))
        assert entry.text == event.rendered_output
        assert event.rendered_output


def test_every_capability_is_covered():
    assert {section.capability.name for section, _ in EXPECTED_CALLS.values()} == capabilities().keys()


def test_two_messages(backend: Backend):
    answer = backend.adapter("two_messages").evaluate(verdict_prompt("Explain it."), session=Session())

    assert answer.output == Verdict("done", 3)
    assert answer.text.startswith("Let me think about it.\n\n{")


def test_unknown_items_are_repeated_unchanged(backend: Backend):
    answer = backend.adapter("unknown_items").evaluate(verdict_prompt("Read my mind."), session=Session())

    assert answer.output == Verdict("done", 3)
    assert isinstance(backend, RecordedBackend)
    sent = backend.api.bodies[1]["input"]
    assert sent[1]["x_future"] == {"deep": [1, 2.5, None]}
    assert sent[2]["type"] == "telepathy_call"


# ── recorded ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def recorded() -> Iterator[Any]:
    """Recorded responses of OpenAI, if they are present: a response, and the final response of a stream."""
    for path in sorted(RECORDED.glob("openai-*-response.json")):
        yield pytest.param(json.loads(path.read_text(encoding="utf-8")), id=path.stem)
    for path in sorted(RECORDED.glob("openai-*-stream.jsonl")):
        last = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
        yield pytest.param(last.get("response", last), id=path.stem)


@pytest.mark.skipif(not RECORDED.is_dir(), reason="no recorded answers lie beside this clone")
@pytest.mark.parametrize("payload", list(recorded()))
def test_recorded_openai_response_is_parsed(api: FakeResponsesApi, payload: dict[str, Any]):
    api.responses = FakeResponsesApi.to_responses([payload])
    session = Session()
    hosted = OpenAIHostedToolsConfig(code_interpreter=True)
    answer = api.adapter(hosted_tools=hosted).evaluate(text_prompt("Roll dice."), session=session)

    ran = [item for item in payload["output"] if item["type"] == "code_interpreter_call"]
    texts = [part["text"] for item in payload["output"] for part in item.get("content") or []]
    events = session[ToolInvoked].all()
    assert answer.text == "\n\n".join(texts)
    assert [event.call_id for event in events] == [item["id"] for item in ran]
    assert [event.params for event in events] == [CodeInterpreterCall(one["code"], one["container_id"]) for one in ran]
    assert all(event.success for event in events)
    assert answer.usage.total_tokens == payload["usage"]["total_tokens"]
    cited = [one for one in answer.citations if isinstance(one, ContainerFileCitation)]
    assert len(cited) == 1
    assert answer.text[cited[0].start_index : cited[0].end_index].startswith("sandbox:/mnt/data/")
    last: Any = events[-1].result.value
    assert last.files == (ContainerFile(cited[0].container_id, cited[0].file_id, cited[0].filename),)
