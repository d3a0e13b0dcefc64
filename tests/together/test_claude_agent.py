"""The Claude Agent SDK adapter with the real CLI and a server process: tools, safety, limits, and what is left.

The scripted model does what a hostile model would do, and the tests read what it gets back.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fake_claude_sdk
import pytest
from fixtures_claude import KEY, answer, claude_adapter, needs_the_cli, own, proves, temporary_directory
from fixtures_server import Server
from fixtures_workspace import call, scripted_server, write_files

from weakincentives.adapters.claude_agent_sdk import (
    ClaudeAgentSDKModelConfig,
    ClaudeAgentSDKToolsConfig,
    ClaudeAgentWorkspaceSection,
    NetworkPolicy,
    adapter,
)
from weakincentives.adapters.claude_agent_sdk.process.sandbox import SandboxPrograms
from weakincentives.adapters.retry import ThrottlePolicy
from weakincentives.budget import Budget, BudgetTracker
from weakincentives.deadlines import Deadline
from weakincentives.errors import (
    BudgetExceededError,
    DeadlineExceededError,
    PromptEvaluationError,
    TurnLimitError,
)
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Section, Tool, ToolContext, ToolResult
from weakincentives.runtime import ModelProgress, ModelResponded, Session, ToolInvoked
from weakincentives.tools import HostMount

pytestmark = [pytest.mark.claude, needs_the_cli]

SECRET = "hunter2-of-the-host"
MARKER = "MARKER-9d2e"


@dataclass(frozen=True)
class Sql:
    sql: str


@dataclass(frozen=True)
class Rows:
    count: int


@dataclass(frozen=True)
class Report:
    total: int
    names: list[str]


@dataclass(frozen=True)
class Noted:
    text: str


def run_query(params: Sql, *, context: ToolContext) -> ToolResult[Rows]:
    context.session[Noted].append(Noted(params.sql))
    context.filesystem.write_text("query.txt", params.sql)
    return ToolResult(f"rows of {params.sql}", Rows(2), success=params.sql != "fail")


QUERY = Tool[Sql, Rows](name="run_query", description="Run SQL.", handler=run_query)


def bash(command: str, **more: Any) -> dict[str, Any]:
    return call("Bash", command=command, description="a command", **more)


LOOK_AROUND = """
env
cat /proc/*/environ | tr '\\0' '\\n'
cat "$CLAUDE_CONFIG_DIR"/../private/* /proc/*/root/tmp/*/private/key
grep -r sk-test "$CLAUDE_CONFIG_DIR" "$HOME"
ls /root /home
cat ${OUTSIDE} /etc/shadow ${CWD}/pyproject.toml
echo the end
"""
REACH = """
for port in ${PORT} 80; do (exec 3<>/dev/tcp/127.0.0.1/$port) && echo reached $port; done
curl -s -m 5 http://127.0.0.1:${PORT}/healthz && echo reached by proxy
curl -s -m 5 --noproxy '*' http://127.0.0.1:${PORT}/healthz && echo reached directly
echo the end
"""
REACH_A_HOST = """
curl -sf -m 20 --noproxy '' http://localhost:${PORT}/healthz && echo reached
echo the end
"""
WRITE_OUTSIDE = """
for d in / /etc /usr "$CLAUDE_CONFIG_DIR"; do touch "$d/wink-was-here" && echo wrote "$d"; done
echo the end
"""


def scenarios(directory: Path, port: int) -> dict[str, list[Any]]:
    outside = directory / "outside.txt"
    filled = {"${OUTSIDE}": str(outside), "${CWD}": str(Path.cwd()), "${PORT}": str(port)}

    def fill(text: str) -> str:
        for name, value in filled.items():
            text = text.replace(name, value)
        return text

    return {
        "all tools": [
            call("Write", file_path="new.txt", content="one\ntwo\n"),
            call("Read", file_path="new.txt"),
            call("Edit", file_path="new.txt", old_string="two", new_string="three"),
            call("Glob", pattern="**/*.txt"),
            call("Grep", pattern="three", output_mode="content"),
            bash("cat new.txt; wc -l < new.txt"),
            own("run_query", sql="SELECT 1"),
            answer(total=3, names=["new.txt"]),
        ],
        "plain text": [{"text": "Hello."}],
        "project settings": [
            bash("echo ran"),
            call("Read", file_path="CLAUDE.md"),
            {"text": "<<find /MARKER-[0-9a-f]+-[a-z]+/>>"},
        ],
        "mention": [{"text": "seen: <<find /MARKER-[0-9a-f]+/>>"}],
        "outside": [
            call("Read", file_path="/etc/passwd"),
            call("Read", file_path=str(outside)),
            call("Grep", pattern=".", path="/etc/passwd", output_mode="content"),
            call("Glob", pattern="*", path="/etc"),
            call("Write", file_path=str(outside.with_name("written.txt")), content="x"),
            bash(f"ln -s /etc etc; ln -s {outside} link.txt; echo linked"),
            call("Read", file_path="etc/passwd"),
            call("Read", file_path="link.txt"),
            call("Write", file_path="etc/wink-was-here", content="x"),
            call("Grep", pattern=".", path="etc", output_mode="content"),
            {"text": "Done."},
        ],
        "look around": [bash(fill(LOOK_AROUND)), {"text": "Done."}],
        "reach the network": [bash(fill(REACH), timeout=60000), {"text": "Done."}],
        "reach a host": [bash(fill(REACH_A_HOST)), {"text": "Done."}],
        "write outside": [bash(WRITE_OUTSIDE), {"text": "Done."}],
        "leave the sandbox": [
            bash(f"cat {outside}", dangerouslyDisableSandbox=True),
            bash("sleep 600", run_in_background=True),
            bash("(setsid python3 -c 'import time; time.sleep(600)' >/dev/null 2>&1 &) ; echo left"),
            {"text": "Done."},
        ],
        "bash": [bash("echo unsandboxed"), {"text": "Done."}],
        "rollback": [
            own("run_query", sql="keep"),
            own("run_query", sql="fail"),
            own("run_query", wrong="argument"),
            {"text": "Done."},
        ],
        "long command": [bash("echo begun > begun.txt; python3 -c 'import time; time.sleep(600)'"), {"text": "Done."}],
        "never ends": [{"delay": 600}],
        "many turns": [bash("echo 1"), bash("echo 2"), bash("echo 3"), {"text": "Done."}],
        "last turn": [bash("echo 1"), answer(total=1, names=[])],
        "wrong answer": [answer(total="three"), answer(total=3, names=["b"])],
        "no structured answer": [{"text": "It is three."}],
        "fault": [{"fault": {"status": 400, "code": "invalid_prompt", "message": "no such thing"}}],
        "recall": [{"text": "seen: <<find /MARKER-[0-9a-f]+-first/>>"}],
        "long result": [own("run_query", sql="x" * 300), {"text": "Done."}],
        "wait": [bash("echo 1"), {"text": "Done."}],
    }


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("outside")
    (directory / "outside.txt").write_text(f"{MARKER}\n")
    return directory


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, outside: Path) -> Iterator[Server]:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    config = {"server": {"port": port}, "log": {"level": "debug"}}
    with scripted_server(tmp_path_factory.mktemp("server"), scenarios(outside, port), **config) as running:
        assert running.url.endswith(f":{port}")
        yield running


@dataclass
class Run:
    """One evaluation of a scenario."""

    session: Session
    response: Any
    files: list[str]

    @property
    def calls(self) -> list[tuple[str, bool]]:
        return [(event.name, event.success) for event in self.session[ToolInvoked].all()]

    def outputs(self, name: str) -> list[str]:
        return [event.rendered_output for event in self.session[ToolInvoked].all() if event.name == name]


class Scenarios:
    def __init__(self, server: Server) -> None:
        self._server = server

    def run(
        self,
        name: str,
        *,
        output: Any = None,
        mounts: Any = (),
        tools: Any = (QUERY,),
        text: str = "",
        session: Session | None = None,
        adapter: dict[str, Any] | None = None,
        **options: Any,
    ) -> Run:
        session = session or Session()
        roots = [mount.host_path for mount in mounts]
        with ClaudeAgentWorkspaceSection(session=session, mounts=mounts, allowed_host_roots=roots) as workspace:
            evaluator = claude_adapter(self._server, **(adapter or {}))
            prompt = scenario(name, workspace, output=output, tools=tools, text=text)
            response = evaluator.evaluate(prompt, session=session, **options)
            return Run(session, response, sorted(workspace.filesystem.list_dir()))


def scenario(name: str, *sections: Section[Any], output: Any, tools: Any, text: str) -> Prompt[Any]:
    task = MarkdownSection(title="Task", key="task", template=f"Run scenario {name}. {text}", tools=tools)
    template: Any = PromptTemplate if output is None else PromptTemplate[output]
    return Prompt(template(ns="test", key="claude", sections=[task, *sections]))


@pytest.fixture
def run(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Evaluate a scenario. Afterwards nothing is left: files, sockets, processes."""
    monkeypatch.setenv("SECRET_OF_THE_HOST", SECRET)
    with temporary_directory(monkeypatch):
        yield Scenarios(server).run


# ── Tools and answers ────────────────────────────────────────────────────────────────────────────────────────────────


@proves(
    "files and commands for the model",
    openai="code interpreter",
    claude="Read, Write, Edit, Glob, Grep; Bash in its sandbox",
)
def test_tools_of_claude_and_of_the_prompt_and_a_typed_answer(run):
    ran: Run = run("all tools", output=Report)

    assert ran.response.output == Report(3, ["new.txt"])
    assert ran.calls == [
        *((name, True) for name in ("Write", "Read", "Edit", "Glob", "Grep", "Bash")),
        ("run_query", True),
    ]
    assert ran.files == ["new.txt", "query.txt"]
    assert "one" in ran.outputs("Read")[0]
    assert "new.txt" in ran.outputs("Glob")[0]
    assert "three" in ran.outputs("Grep")[0]
    assert ran.outputs("Bash")[0].startswith("one\nthree\n2")
    events = ran.session[ToolInvoked].all()
    assert [event.origin for event in events] == ["provider"] * 6 + ["client"]
    assert (events[5].result.value or {})["stdout"].startswith("one\nthree\n2")
    assert (events[6].params, events[6].result.value) == (Sql("SELECT 1"), Rows(2))
    assert len({event.call_id for event in events}) == 7
    kinds = [entry.kind for entry in ran.session.transcript()]
    assert kinds == ["prompt", *["model", "tool"] * 7, "model", "answer"]
    replies = ran.session[ModelResponded].all()
    assert [reply.turn for reply in replies] == list(range(8))
    assert all(reply.usage.input_tokens > 0 and reply.usage.output_tokens > 0 for reply in replies)
    assert ran.response.usage.total_tokens == sum(reply.usage.total_tokens for reply in replies)
    assert ran.response.turns == 8


def test_prompt_as_the_system_prompt_and_progress(run):
    session = Session()
    pieces: list[str] = []
    session.dispatcher.subscribe(ModelProgress, lambda event: pieces.append(event.text))
    model = ClaudeAgentSDKModelConfig(prompt_role="system", stream=True, effort="low", max_output_tokens=1000)
    ran: Run = run("plain text", text="x" * 200_000, session=session, adapter={"model_config": model})

    # The script chooses by the text of the user, which is not the prompt's.
    assert ran.response.text == "".join(pieces)


def test_answer_that_does_not_match_is_repeated(run):
    ran: Run = run("wrong answer", output=Report)

    assert ran.response.output == Report(3, ["b"])
    assert ran.calls == []


def test_missing_structured_answer_is_an_error(run):
    with pytest.raises(PromptEvaluationError, match="the answer is not a Report") as raised:
        run("no structured answer", output=Report)

    assert raised.value.phase == "response"


def test_failed_tool_is_rolled_back(run):
    session = Session()
    ran: Run = run("rollback", session=session)

    assert session[Noted].all() == (Noted("keep"),)
    assert ran.files == ["query.txt"]
    assert ran.calls == [("run_query", True), ("run_query", False), ("run_query", False)]
    assert ran.outputs("run_query")[1].startswith("rows of fail")
    assert "'sql' is a required property" in ran.outputs("run_query")[2]
    assert session[ToolInvoked].all()[0].params == Sql("keep")


@proves("one conversation per session", openai="`compaction=`", claude="`continue_conversation=True`")
def test_evaluations_of_a_session_may_be_one_conversation(server, monkeypatch):
    first = scenario("plain text", output=None, tools=(), text="Remember MARKER-1b-first.")
    second = scenario("recall", output=None, tools=(), text="")
    session = Session()
    with temporary_directory(monkeypatch):
        with claude_adapter(server, continue_conversation=True) as adapter:
            assert adapter.evaluate(first, session=session).text == "Hello."
            continued = adapter.evaluate(second, session=session)
            separate = adapter.evaluate(second, session=Session())
        fresh = claude_adapter(server).evaluate(second, session=session)

    assert continued.text == "seen: MARKER-1b-first"
    assert (separate.text, fresh.text) == ("seen: ", "seen: ")
    assert continued.usage.input_tokens > fresh.usage.input_tokens
    assert (continued.turns, fresh.turns) == (1, 1)


# ── Safety ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@proves("settings of a mounted project", openai="are files", claude="are files: nothing of them runs or is loaded")
def test_settings_hooks_servers_and_instructions_of_a_mounted_project_are_ignored(run, tmp_path):
    ran_file = tmp_path / "a-hook-ran"
    hook = {"type": "command", "command": f"touch {ran_file}"}
    events = ("PreToolUse", "PostToolUse", "UserPromptSubmit", "SessionStart", "Stop")
    settings = json.dumps({"hooks": {event: [{"hooks": [hook]}] for event in events}})
    server = json.dumps({"mcpServers": {"evil": {"command": "touch", "args": [str(ran_file)]}}})
    write_files(
        tmp_path / "project",
        {
            ".claude/settings.json": settings,
            ".claude/settings.local.json": settings,
            ".mcp.json": server,
            "CLAUDE.md": "MARKER-1a-read",
            "CLAUDE.local.md": "MARKER-1a-local",
            ".claude/CLAUDE.md": "MARKER-1a-nested",
        },
    )
    ran: Run = run("project settings", mounts=[HostMount(tmp_path / "project", mount_path=".")])

    assert ran.calls == [("Bash", True), ("Read", True)]
    assert ran.response.text == "MARKER-1a-read"  # only because the model read it
    assert not ran_file.exists()
    assert ".claude" in ran.files  # it was mounted


def test_paths_in_the_prompt_are_text(run, outside):
    ran: Run = run("mention", text=f"Look at @{outside}/outside.txt and @/etc/hostname.")

    assert ran.response.text == "seen: "


@proves("file access of the model", openai="the container", claude="the working directory, links resolved")
def test_file_tools_are_confined_to_the_workspace(run, outside):
    ran: Run = run("outside")

    assert [name for name, success in ran.calls if success] == ["Bash"]
    assert len(ran.calls) == 10
    everything = "\n".join(event.rendered_output for event in ran.session[ToolInvoked].all())
    assert MARKER not in everything
    assert "daemon:" not in everything
    assert not (outside / "written.txt").exists()
    assert not Path("/etc/wink-was-here").exists()


@proves("secrets of the host", openai="not in the container", claude="not in the environment or in readable files")
def test_commands_see_no_secrets_of_the_host(run):
    ran: Run = run("look around")

    (output,) = ran.outputs("Bash")
    assert "the end" in output
    assert "ANTHROPIC_BASE_URL=" in output  # the environment was printed
    for secret in (SECRET, KEY, "SECRET_OF_THE_HOST", MARKER, "daemon:", "[build-system]"):
        assert secret not in output


@proves("network of commands", openai="none, or that of the container", claude="none, or `NetworkPolicy`")
def test_commands_have_no_network(run):
    ran: Run = run("reach the network")

    (output,) = ran.outputs("Bash")
    assert "the end" in output
    assert "reached" not in output


def test_network_policy_opens_the_network_to_a_host(run):
    assert "reached" not in run("reach a host").outputs("Bash")[0]
    tools = ClaudeAgentSDKToolsConfig(network=NetworkPolicy(allowed_domains=("localhost",)))
    assert "reached" in run("reach a host", adapter={"tools_config": tools}).outputs("Bash")[0]


def test_commands_write_to_the_workspace_only(run):
    ran: Run = run("write outside")

    (output,) = ran.outputs("Bash")
    assert "the end" in output
    assert "wrote" not in output
    assert not any(Path(directory, "wink-was-here").exists() for directory in ("/", "/etc", "/usr"))


def test_commands_do_not_leave_the_sandbox_or_outlive_the_evaluation(run):
    ran: Run = run("leave the sandbox")  # the fixture checks that no process is left

    assert ran.calls == [("Bash", False), ("Bash", False), ("Bash", True)]
    assert MARKER not in "".join(ran.outputs("Bash"))


@pytest.fixture
def without_socat(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A PATH without socat."""
    for name in ("cat", "env", "ls", "sh", "bash", "which", "dirname", "uname"):
        found = next((Path(d, name) for d in ("/usr/bin", "/bin") if Path(d, name).exists()), None)
        if found:
            (tmp_path / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("without_socat")
def test_cli_without_a_sandbox_does_not_start(run, monkeypatch):
    """The adapter believes that there is one: the settings demand it."""
    monkeypatch.setattr(adapter, "find_programs", SandboxPrograms)
    session = Session()
    with pytest.raises(PromptEvaluationError, match=r"sandbox|failed"):
        run("bash", session=session)

    assert session[ToolInvoked].all() == ()


@pytest.mark.usefixtures("without_socat")
def test_without_a_sandbox_there_is_no_bash(run, caplog):
    ran: Run = run("bash")

    assert ran.calls == []  # the server answers calls of tools that are not declared
    assert ran.response.text == "Done."
    assert "socat is not installed" in caplog.text
    with pytest.raises(PromptEvaluationError, match="Bash needs its sandbox"):
        run("bash", adapter={"tools_config": ClaudeAgentSDKToolsConfig(require_bash=True)})


# ── Limits and errors ────────────────────────────────────────────────────────────────────────────────────────────────


def test_deadline_ends_a_command(run):
    session = Session()
    with pytest.raises(DeadlineExceededError):
        run("long command", session=session, deadline=Deadline.after(12))


def test_deadline_ends_a_request(run):
    with pytest.raises(DeadlineExceededError):
        run("never ends", deadline=Deadline.after(4))


def test_budget_ends_the_run_before_the_tool(run):
    session = Session()
    tracker = BudgetTracker(Budget(max_total_tokens=50))
    with pytest.raises(BudgetExceededError):
        run("many turns", session=session, budget_tracker=tracker)

    assert session[ToolInvoked].all() == ()
    assert len(session[ModelResponded].all()) == 1
    assert tracker.usage.total_tokens > 50


def test_turn_limit(run):
    session = Session()
    with pytest.raises(TurnLimitError):
        run("many turns", session=session, adapter={"max_turns": 2})
    assert len(session[ModelResponded].all()) == 2

    assert run("last turn", output=Report, adapter={"max_turns": 2}).response.output == Report(1, [])


def test_error_of_the_api_is_a_request_error(run):
    with pytest.raises(PromptEvaluationError, match="no such thing") as raised:
        run("fault", adapter={"throttle": ThrottlePolicy(max_attempts=1)})

    assert raised.value.phase == "request"


def test_server_that_does_not_answer_is_a_request_error(run, server, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    config = dataclasses.replace(claude_adapter(server).client_config, base_url=url)
    with pytest.raises(PromptEvaluationError, match="failed") as raised:
        run("plain text", adapter={"client_config": config, "throttle": ThrottlePolicy(max_attempts=1)})

    assert raised.value.phase == "request"


def test_cli_that_does_not_start_is_a_request_error(run, server):
    config = dataclasses.replace(claude_adapter(server).client_config, cli_path="/bin/false")
    with pytest.raises(PromptEvaluationError, match="the CLI of the Claude Agent SDK failed"):
        run("plain text", adapter={"client_config": config})


def test_evaluations_at_the_same_time_are_separate(run):
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda name: run(name, session=Session()), ["bash", "rollback"]))

    assert [ran.response.text for ran in runs] == ["Done.", "Done."]
    assert [len(ran.calls) for ran in runs] == [1, 3]


# ── The fake ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_fake_sdk_has_the_classes_and_fields_of_the_sdk():
    sdk = importlib.import_module("claude_agent_sdk")
    assert sdk.__version__ == "0.2.182"
    for fake in fake_claude_sdk.MESSAGES:
        real = {field.name for field in dataclasses.fields(getattr(sdk, fake.__name__))}
        assert {field.name for field in dataclasses.fields(fake)} <= real, fake.__name__
    assert {"hooks", "timeout", "on_failure"} <= {field.name for field in dataclasses.fields(sdk.HookMatcher)}
