"""The adapter with a fake SDK: limits, tools, rollback, events and errors of an evaluation."""

from __future__ import annotations

import gc
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fake_claude_sdk import FakeSdk, Hang, ResultMessage, Use
from waiting import wait_until

from weakincentives.adapters import NamedTool, PromptResponse, ThrottlePolicy
from weakincentives.adapters.claude_agent_sdk import (
    ClaudeAgentSDKAdapter,
    ClaudeAgentSDKClientConfig,
    ClaudeAgentSDKModelConfig,
    ClaudeAgentSDKToolsConfig,
    ClaudeAgentWorkspaceSection,
)
from weakincentives.adapters.claude_agent_sdk.process.sandbox import SandboxPrograms
from weakincentives.adapters.openai import OpenAIContainerWorkspaceSection
from weakincentives.budget import Budget, BudgetTracker, TokenUsage
from weakincentives.deadlines import Deadline
from weakincentives.errors import (
    BudgetExceededError,
    DeadlineExceededError,
    IncompleteAnswerError,
    MissingExtraError,
    NativeToolError,
    PromptEvaluationError,
    PromptValidationError,
    RefusalError,
    TurnLimitError,
)
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import (
    MarkdownSection,
    NativeTool,
    Prompt,
    PromptTemplate,
    Section,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.resources import ResourceRegistry
from weakincentives.runtime import (
    ModelProgress,
    ModelResponded,
    PromptExecuted,
    PromptRendered,
    Session,
    ToolInvoked,
)
from weakincentives.testing import ScriptedAdapter
from weakincentives.tools import HostMount

ADAPTER = "weakincentives.adapters.claude_agent_sdk.adapter"


@dataclass(frozen=True)
class Query:
    sql: str


@dataclass(frozen=True)
class Rows:
    count: int


@dataclass(frozen=True)
class Report:
    total: int


@dataclass(frozen=True)
class Noted:
    text: str


threads: list[threading.Thread] = []


def run_query(params: Query, *, context: ToolContext) -> ToolResult[Rows]:
    threads.append(threading.current_thread())
    context.session[Noted].append(Noted(params.sql))
    if params.sql == "raise":
        raise RuntimeError("no such table")
    return ToolResult("2 rows", Rows(2), success=params.sql != "fail")


QUERY = Tool[Query, Rows](name="run_query", description="Run SQL.", handler=run_query)


def query(sql: str, **options: Any) -> Use:
    return Use("mcp__wink__run_query", {"sql": sql}, **options)


def adapter(**options: Any) -> ClaudeAgentSDKAdapter:
    client = ClaudeAgentSDKClientConfig(api_key="key", base_url="http://127.0.0.1:9", cli_path="/bin/true")
    return ClaudeAgentSDKAdapter(**{"model": "scripted", "client_config": client, **options})


def prompt(*sections: Section[Any], output: Any = None, tools: Any = (QUERY,), **options: Any) -> Prompt[Any]:
    task = MarkdownSection(title="Task", key="task", template="Do it.", tools=tools)
    template: Any = PromptTemplate if output is None else PromptTemplate[output]
    return Prompt(template(ns="test", key="claude", sections=[task, *sections], **options))


class Evaluations:
    """Evaluates with these replies. `sdk` is the fake; nothing is left of the CLI's directories."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self._monkeypatch = monkeypatch
        self._directory = directory
        self.sdk = FakeSdk(())
        self.session = Session()
        self.builtin: Any = lambda name, arguments: (f"{name} ran", False, {"type": name})
        self.model_usage: dict[str, Any] | None = None
        self.keeps_directories = False

    def __call__(
        self, *replies: Any, of: Prompt[Any] | None = None, with_adapter: Any = None, **options: Any
    ) -> PromptResponse[Any]:
        self.sdk = FakeSdk(replies, builtin=self.builtin, model_usage=self.model_usage).install(self._monkeypatch)
        evaluator = with_adapter or adapter()
        try:
            return evaluator.evaluate(of or prompt(), **{"session": self.session, **options})
        finally:
            assert self.keeps_directories or list(self._directory.glob("wink-claude-*")) == []
            assert "claude-agent-sdk" not in {thread.name for thread in threading.enumerate()}


@pytest.fixture
def evaluate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Evaluations:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return Evaluations(monkeypatch, tmp_path)


def test_answer_is_typed_and_events_are_those_of_every_adapter(evaluate):
    response = evaluate(
        ["I look. ", query("SELECT 1")], [Use("StructuredOutput", {"total": 3})], of=prompt(output=Report)
    )

    assert response == PromptResponse("claude", '{"total": 3}', Report(3), TokenUsage(20, 4), 2)
    assert [entry.kind for entry in evaluate.session.transcript()] == ["prompt", "model", "tool", "model", "answer"]
    (rendered,) = evaluate.session[PromptRendered].all()
    assert (rendered.adapter, rendered.tool_names) == ("claude_agent_sdk", ("run_query",))
    assert [(event.turn, event.text, event.tool_calls) for event in evaluate.session[ModelResponded].all()] == [
        (0, "I look. ", ("run_query",)),
        (1, '{"total": 3}', ()),
    ]
    (invoked,) = evaluate.session[ToolInvoked].all()
    assert (invoked.name, invoked.params, invoked.result.value, invoked.origin) == (
        "run_query",
        Query("SELECT 1"),
        Rows(2),
        "client",
    )
    assert invoked.call_id == "toolu_1"
    assert evaluate.session[PromptExecuted].latest().result == response
    assert evaluate.sdk.log == ["connect", "disconnect"]
    assert evaluate.sdk.prompts == ["## 1. Task (task)\n\nDo it."]


def test_tools_run_in_the_thread_of_the_caller(evaluate):
    threads.clear()
    evaluate([query("SELECT 1")], ["Done."])

    assert threads == [threading.current_thread()]


@pytest.mark.parametrize("sql", ["fail", "raise"])
def test_failed_tool_is_rolled_back_and_the_model_reads_the_error(evaluate, sql):
    evaluate.session[Noted].append(Noted("before"))
    evaluate([query(sql)], ["Done."])

    assert evaluate.session[Noted].all() == (Noted("before"),)
    ((_, content, is_error),) = evaluate.sdk.results
    assert is_error
    assert content[0]["text"] == evaluate.session[ToolInvoked].latest().rendered_output
    assert not evaluate.session[ToolInvoked].latest().success


def test_call_that_the_cli_gave_up_is_rolled_back(evaluate):
    """The call is cancelled while its handler waits, and the handler succeeds all the same."""

    def wait(params: Query, *, context: ToolContext) -> ToolResult[Rows]:
        context.session[Noted].append(Noted("from the handler"))
        evaluate.sdk.is_handler_running = True
        wait_until(lambda: evaluate.sdk.results)  # the CLI has given up
        return ToolResult("late", Rows(1))

    tool = Tool[Query, Rows](name="run_query", description="Wait.", handler=wait)
    given_up = Use("mcp__wink__run_query", {"sql": "x"}, cancelled=True)
    evaluate([given_up], ["Done."], of=prompt(tools=(tool,)))

    assert evaluate.session[Noted].all() == ()
    assert [event.success for event in evaluate.session[ToolInvoked].all()] == [False]


def test_tool_of_the_cli_becomes_a_provider_run_call(evaluate, tmp_path):
    with ClaudeAgentWorkspaceSection(session=evaluate.session) as workspace:
        evaluate([Use("Read", {"file_path": "a.txt"})], ["Done."], of=prompt(workspace))

    (invoked,) = evaluate.session[ToolInvoked].all()
    assert (invoked.name, invoked.origin, invoked.provider, invoked.capability) == (
        "Read",
        "provider",
        "claude_agent_sdk",
        "read",
    )
    assert (invoked.params, invoked.result.value, invoked.rendered_output) == (
        {"file_path": "a.txt"},
        {"type": "Read"},
        "Read ran",
    )


@pytest.mark.parametrize(
    "use",
    [
        Use("Read", {"file_path": "/etc/passwd"}),
        Use("WebFetch", {"url": "http://example.com"}),
        Use("Bash", {"command": "ls", "dangerouslyDisableSandbox": True}),
    ],
    ids=lambda use: use.name,
)
def test_call_that_the_policy_refuses_does_not_run(evaluate, use, monkeypatch):
    evaluate.builtin = lambda name, arguments: pytest.fail("it ran")
    with ClaudeAgentWorkspaceSection(session=evaluate.session) as workspace:
        evaluate([use], ["Done."], of=prompt(workspace))

    (invoked,) = evaluate.session[ToolInvoked].all()
    assert (invoked.name, invoked.success, invoked.params) == (use.name, False, use.arguments)


def test_budget_ends_the_run_before_the_tool(evaluate):
    tracker = BudgetTracker(Budget(max_total_tokens=11))
    with pytest.raises(BudgetExceededError, match="max_total_tokens is 11, used 12"):
        evaluate(["I look.", query("SELECT 1")], ["Done."], budget_tracker=tracker)

    assert evaluate.session[ToolInvoked].all() == ()
    assert evaluate.sdk.log == ["connect", "interrupt", "disconnect"]
    assert tracker.usage == TokenUsage(10, 2)


def test_requests_without_a_reply_count_for_the_budget(evaluate):
    """Such as the compaction of the history, which only the result reports."""
    evaluate.model_usage = {"m": {"inputTokens": 100, "outputTokens": 2, "cacheReadInputTokens": 30}}
    tracker = BudgetTracker(Budget(max_total_tokens=1000))
    response = evaluate(["Done."], budget_tracker=tracker)

    assert response.usage == tracker.usage == TokenUsage(130, 2, 30)
    with pytest.raises(BudgetExceededError):
        evaluate(["Done."], budget=Budget(max_total_tokens=100))


def test_deadline_interrupts_the_cli(evaluate):
    with pytest.raises(DeadlineExceededError):
        evaluate(["I look.", query("SELECT 1")], Hang(), deadline=Deadline.after(0.5))

    assert evaluate.sdk.log == ["connect", "interrupt", "disconnect"]
    assert evaluate.session[PromptExecuted].all() == ()


def test_deadline_that_has_passed_starts_no_cli(evaluate):
    with pytest.raises(DeadlineExceededError):
        evaluate(["Done."], deadline=Deadline.after(-1))

    assert evaluate.sdk.log == []


def test_exception_of_the_driver_ends_the_cli(evaluate):
    """Such as Ctrl-C while a tool runs."""

    def stop(params: Query, *, context: ToolContext) -> ToolResult[Rows]:
        context.session[Noted].append(Noted("x"))
        raise KeyboardInterrupt

    tool = Tool[Query, Rows](name="run_query", description="Stop.", handler=stop)
    with pytest.raises(KeyboardInterrupt):
        evaluate([query("x")], of=prompt(tools=(tool,)))

    assert evaluate.session[Noted].all() == ()
    assert evaluate.sdk.log == ["connect", "interrupt", "disconnect"]


FAILED = {
    "error_max_turns": (ResultMessage("error_max_turns", True), TurnLimitError, "still calls tools after 1 turns"),
    "api error": (
        ResultMessage(is_error=True, result="API Error: 401 invalid key", api_error_status=401),
        PromptEvaluationError,
        "request to claude_agent_sdk failed: API Error: 401 invalid key",
    ),
    "during execution": (
        ResultMessage("error_during_execution", True, errors=["it broke"]),
        PromptEvaluationError,
        "it broke",
    ),
    "refusal": (ResultMessage(result="I will not.", stop_reason="refusal"), RefusalError, "I will not"),
    "max tokens": (
        ResultMessage(is_error=True, result="cut", stop_reason="max_tokens"),
        IncompleteAnswerError,
        "max_output_tokens",
    ),
    "crash": (RuntimeError("exit code 3"), PromptEvaluationError, "failed: exit code 3"),
}


@pytest.mark.parametrize("case", FAILED)
def test_failed_run_raises_the_error_of_its_kind(evaluate, case):
    last, kind, message = FAILED[case]
    with pytest.raises(kind, match=message) as raised:
        evaluate(["I look."], last)

    assert raised.value.prompt_name == "claude"
    assert evaluate.session[PromptExecuted].all() == ()
    assert len(evaluate.session[ModelResponded].all()) == 1


def test_success_without_structured_output_is_an_error_unless_the_text_is_the_answer(evaluate):
    with pytest.raises(PromptEvaluationError, match="the answer is not a Report") as raised:
        evaluate(["It is three."], of=prompt(output=Report))
    assert (raised.value.phase, raised.value.provider_payload) == ("response", "It is three.")

    assert evaluate(['{"total": 3}'], of=prompt(output=Report)).output == Report(3)


def test_list_output_is_wrapped_in_an_object(evaluate):
    answer = Use("StructuredOutput", {"items": [{"total": 1}, {"total": 2}]})
    response = evaluate([answer], of=prompt(output=list[Report]))

    assert response.output == [Report(1), Report(2)]
    assert evaluate.sdk.options[0].output_format["schema"]["required"] == ["items"]


def test_call_that_the_sdk_refuses_is_recorded_as_failed(evaluate, monkeypatch):
    """The SDK checks arguments before the handler: then the message to the model is all that arrives."""
    original = FakeSdk.install

    def install(self: FakeSdk, patch: pytest.MonkeyPatch) -> FakeSdk:
        original(self, patch)
        sys.modules["claude_agent_sdk"].__dict__["create_sdk_mcp_server"] = lambda name, tools: {"run_query": refusing}
        return self

    async def refuse(arguments: dict[str, Any]) -> dict[str, Any]:
        return {"content": "Input validation error: 'sql' is a required property", "is_error": True}

    refusing = type("Refusing", (), {"handler": staticmethod(refuse)})
    monkeypatch.setattr(FakeSdk, "install", install)
    evaluate([Use("mcp__wink__run_query", {})], ["Done."])

    (invoked,) = evaluate.session[ToolInvoked].all()
    assert (invoked.name, invoked.origin, invoked.success, invoked.params) == ("run_query", "client", False, {})


def test_tools_of_a_summarized_section_are_declared_and_refused_until_it_is_opened(evaluate):
    more = MarkdownSection(
        title="More", key="more", template="All.", summary="Some.", visibility=SectionVisibility.SUMMARY, tools=(QUERY,)
    )
    call = query("SELECT 1")
    evaluate([call], [Use("mcp__wink__open_section", {"path": "more"})], [call], ["Done."], of=prompt(more, tools=()))

    assert [(event.name, event.success) for event in evaluate.session[ToolInvoked].all()] == [
        ("run_query", False),
        ("open_section", True),
        ("run_query", True),
    ]
    declared = evaluate.sdk.options[0].mcp_servers["wink"]
    assert list(declared) == ["open_section", "run_query"]
    assert "Available after its section was opened" in declared["run_query"].description


def test_resources_of_the_workspace_are_its_files(evaluate, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.txt").write_text("hello")

    def read(params: Query, *, context: ToolContext) -> ToolResult[None]:
        context.filesystem.write_text("new.txt", "x")
        return ToolResult(context.filesystem.read_text(params.sql), None, success=params.sql != "data/a.txt")

    tool = Tool[Query, None](name="run_query", description="Read.", handler=read)
    with ClaudeAgentWorkspaceSection(
        session=evaluate.session, mounts=[HostMount(tmp_path / "data")], allowed_host_roots=[tmp_path]
    ) as workspace:
        evaluate([query("data/a.txt")], ["Done."], of=prompt(workspace, tools=(tool,)))
        assert evaluate.session[ToolInvoked].latest().rendered_output.startswith("hello")
        assert workspace.filesystem.list_dir() == ["data"]  # the failed call was rolled back

        other = ResourceRegistry({Filesystem: InMemoryFilesystem()})
        evaluate([query("data/a.txt")], ["Done."], of=prompt(workspace, tools=(tool,)), resources=other)
        assert "MissingFileError" in evaluate.session[ToolInvoked].latest().rendered_output


def test_options_are_safe_by_default(evaluate, monkeypatch):
    monkeypatch.setattr(f"{ADAPTER}.find_programs", SandboxPrograms)
    with ClaudeAgentWorkspaceSection(session=evaluate.session) as workspace:
        evaluate(["Done."], of=prompt(workspace))
        (options,) = evaluate.sdk.options
        assert options.cwd == str(workspace.temp_dir)
    assert options.tools == ["Read", "Write", "Edit", "Glob", "Grep", "Bash"]
    assert (options.setting_sources, options.strict_mcp_config, options.skills) == ([], True, [])
    assert (options.verbatim_prompts, options.permission_mode) == (True, "acceptEdits")
    assert "restricted" in options.extra_args
    assert options.sandbox["failIfUnavailable"] is True
    assert options.hooks["PreToolUse"][0].on_failure == "block"


def test_bash_without_its_sandbox_is_left_out(evaluate, monkeypatch, caplog):
    monkeypatch.setenv("PATH", "/nonexistent")
    with ClaudeAgentWorkspaceSection(session=evaluate.session) as workspace:
        evaluate(["Done."], of=prompt(workspace))
        assert evaluate.sdk.options[0].tools == ["Read", "Write", "Edit", "Glob", "Grep"]
        assert not hasattr(evaluate.sdk.options[0], "sandbox")
        assert "Bash is left out of the tools, because it has no sandbox" in caplog.text

        needed = adapter(tools_config=ClaudeAgentSDKToolsConfig(require_bash=True))
        with pytest.raises(PromptEvaluationError, match="Bash needs its sandbox"):
            evaluate(["Done."], of=prompt(workspace), with_adapter=needed)


def test_prompt_without_a_workspace_gets_its_own_tools_only(evaluate):
    evaluate(["Done."])

    assert evaluate.sdk.options[0].tools == []
    assert evaluate.sdk.options[0].allowed_tools == ["mcp__wink"]


def test_prompt_may_be_the_system_prompt(evaluate):
    evaluate(["Done."], with_adapter=adapter(model_config=ClaudeAgentSDKModelConfig(prompt_role="system")))

    assert evaluate.sdk.prompts == ["Carry out the task of the system prompt."]
    assert evaluate.sdk.options[0].system_prompt["type"] == "file"


def test_progress_is_streamed_to_subscribers(evaluate):
    pieces: list[str] = []
    evaluate.session.dispatcher.subscribe(ModelProgress, lambda event: pieces.append(event.text))
    evaluate(["Done."], with_adapter=adapter(model_config=ClaudeAgentSDKModelConfig(stream=True)))

    assert pieces == ["Done."]


def test_workspace_of_another_provider_is_refused(evaluate):
    with (
        ClaudeAgentWorkspaceSection(session=evaluate.session) as workspace,
        pytest.raises(PromptEvaluationError, match=r"'workspace' \(ClaudeAgentWorkspaceSection\) is for provider"),
    ):
        ScriptedAdapter([]).evaluate(prompt(workspace), session=evaluate.session)


def test_what_the_cli_does_not_support_is_refused_before_it_starts(evaluate, monkeypatch):
    native = NativeTool[None, dict[str, object]](name="web_search", description="Search.")
    with pytest.raises(NativeToolError, match=r"web_search.*is run by the provider"):
        evaluate(["Done."], of=prompt(tools=(native,)))
    for choice in ("required", "none", NamedTool("run_query")):
        with pytest.raises(PromptEvaluationError, match="takes 'auto' only"):
            evaluate(["Done."], of=prompt(tool_choice=choice))
    two = [ClaudeAgentWorkspaceSection(session=evaluate.session).clone(key=key) for key in ("one", "two")]
    with pytest.raises(PromptValidationError, match="declared by section 'one' and by section 'two'"):
        evaluate(["Done."], of=prompt(*two))

    container = OpenAIContainerWorkspaceSection(session=evaluate.session)
    with pytest.raises(PromptEvaluationError, match="use ClaudeAgentWorkspaceSection"):
        evaluate(["Done."], of=prompt(container))
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_AUTH_TOKEN", raising=False)
    with pytest.raises(PromptEvaluationError, match="no API key: set ANTHROPIC_API_KEY"):
        evaluate(["Done."], with_adapter=adapter(client_config=None))

    assert evaluate.sdk.log == []
    with pytest.raises(ValueError, match="model is empty"):
        ClaudeAgentSDKAdapter(model="")


def test_missing_sdk_is_an_error_that_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "claude_agent_sdk", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'weakincentives\[claude\]'"):
        adapter().evaluate(prompt(), session=Session())


def test_evaluations_of_a_session_may_be_one_conversation(evaluate, tmp_path):
    with adapter(continue_conversation=True) as kept:
        root = kept_root(evaluate, kept)
        assert not hasattr(evaluate.sdk.options[0], "resume")
        assert kept_root(evaluate, kept) == root
        assert evaluate.sdk.options[0].resume == "session"
        assert "no-session-persistence" not in evaluate.sdk.options[0].extra_args
        evaluate.session = Session()
        assert kept_root(evaluate, kept) != root
        gc.collect()
        assert not root.exists()  # its session is gone
    assert list(tmp_path.glob("wink-claude-*")) == []


def kept_root(evaluate: Evaluations, kept: ClaudeAgentSDKAdapter) -> Path:
    """Evaluate, and return the directory of the CLI."""
    evaluate.keeps_directories = True
    evaluate(["Done."], with_adapter=kept)
    assert evaluate.session[PromptExecuted].all()
    return Path(evaluate.sdk.options[0].cli_path).parents[1]


def test_attempts_of_the_cli_are_those_of_the_throttle_policy(evaluate, monkeypatch, tmp_path):
    written: list[dict[str, str]] = []
    monkeypatch.setattr(
        "weakincentives.adapters.claude_agent_sdk.process.directories.launcher",
        lambda program, environment: written.append(environment) or "",
    )
    evaluate(["Done."], with_adapter=adapter(throttle=ThrottlePolicy(max_attempts=3)))

    assert written[0]["CLAUDE_CODE_MAX_RETRIES"] == "2"
