"""One agent on both wires: `OpenAIAdapter` on /v1/responses, `ClaudeAgentSDKAdapter` on /v1/messages.

One server with one scripted model serves both. Between the two, an agent changes its workspace section and its adapter;
mounts, prompt, tools, answers and audit events are the same. The rows of the table in docs/claude-agent-sdk.md name
these tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fixtures_claude import KEY, answer, claude_adapter, needs_the_cli, own, proves, temporary_directory
from fixtures_code_interpreter import code_server
from fixtures_server import Server
from fixtures_spec import AnalysisResult, DatabaseConnection, blocks, needs_the_specs, run_spec_block
from fixtures_workspace import adapter_for, call, write_files

from weakincentives.adapters import ProviderAdapter
from weakincentives.adapters.claude_agent_sdk import ClaudeAgentWorkspaceSection
from weakincentives.adapters.openai import OpenAIContainerWorkspaceSection
from weakincentives.budget import Budget
from weakincentives.deadlines import Deadline
from weakincentives.errors import BudgetExceededError, DeadlineExceededError, TurnLimitError
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Section, Tool, ToolContext, ToolResult
from weakincentives.resources import ResourceRegistry
from weakincentives.runtime import PromptExecuted, PromptRendered, Session, ToolInvoked
from weakincentives.tools import HostMount

pytestmark = [pytest.mark.claude, needs_the_cli]

MODEL = "gpt-5.2-codex"
SUM_IN_PYTHON = """
import json
rows = open('/mnt/data/data/sales.csv').read().split()
open('/mnt/data/data/report.txt', 'w').write('made by the model')
print(json.dumps({"total": sum(map(int, rows[1:]))}))
"""
SUM_IN_SHELL = """
printf 'made by the model' > data/report.txt
awk 'NR > 1 { total += $1 } END { printf "{\\"total\\": %d}", total }' data/sales.csv
"""
LIST_IN_SHELL = """
cd project/src && find . -name '*.py' | sed 's|^./||' | sort | awk '
  { names = names (NR > 1 ? ", " : "") "\\"" $0 "\\"" }
  END { printf "{\\"summary\\": \\"%d files\\", \\"issues\\": [%s], \\"suggestions\\": []}", NR, names }'
"""
REVIEW = """
import json, pathlib
found = [str(p.relative_to('/mnt/data/project/src')) for p in pathlib.Path('/mnt/data/project/src').rglob('*.py')]
print(json.dumps({"summary": f"{len(found)} files", "issues": sorted(found), "suggestions": []}))
"""
LIST_DATA = "import os; print(sorted(os.listdir('/mnt/data/data')))"


def when(text: str, turn: int, tool: str, reply: dict[str, Any]) -> dict[str, Any]:
    return {"when": {"text": text, "turn": turn, "tool": tool}, "reply": [reply]}


def python(code: str) -> dict[str, Any]:
    return call("code_interpreter", code=code)


def bash(command: str) -> dict[str, Any]:
    return call("Bash", command=command, description="a command")


AS_WRITTEN = {"call": {"name": "StructuredOutput", "arguments": "<<output>>"}}
TREND_SQL = "SELECT sum(sold) AS total FROM sales"
BY_SQL = "Analyze sales trends using SQL"
ANSWERS = [
    # The model has the tools of its wire: code interpreter on one, Bash and StructuredOutput on the other.
    when("sum the sales", 1, "run_query", call("run_query", sql="SELECT 1")),
    when("sum the sales", 1, "mcp__wink__run_query", own("run_query", sql="SELECT 1")),
    when("sum the sales", 2, "run_query", call("run_query", sql="fail")),
    when("sum the sales", 2, "mcp__wink__run_query", own("run_query", sql="fail")),
    when("sum the sales", 3, "code_interpreter", python(SUM_IN_PYTHON)),
    when("sum the sales", 3, "Bash", bash(SUM_IN_SHELL)),
    when("sum the sales", 4, "StructuredOutput", AS_WRITTEN),
    when("sum the sales", 4, "code_interpreter", {"text": '<<find /\\{"total": [0-9]+\\}/>>'}),
    when("query for ever", 1, "run_query", call("run_query", sql="1")),
    when("query for ever", 2, "run_query", call("run_query", sql="2")),
    when("query for ever", 1, "mcp__wink__run_query", own("run_query", sql="1")),
    when("query for ever", 2, "mcp__wink__run_query", own("run_query", sql="2")),
    {"when": {"text": "wait for ever"}, "reply": [{"delay": 600}]},
    when("Review the Python code", 1, "code_interpreter", python(REVIEW)),
    when("Review the Python code", 1, "Bash", bash(LIST_IN_SHELL)),
    when("Review the Python code", 2, "StructuredOutput", AS_WRITTEN),
    when(BY_SQL, 1, "run_query", call("run_query", sql=TREND_SQL)),
    when(BY_SQL, 1, "mcp__wink__run_query", own("run_query", sql=TREND_SQL)),
    when(BY_SQL, 2, "code_interpreter", python('import json; print(json.dumps({"total": 30}))')),
    when(BY_SQL, 2, "Bash", bash("printf '{\"total\": %d}' 30")),
    when(BY_SQL, 3, "StructuredOutput", AS_WRITTEN),
    when("List the data", 1, "code_interpreter", python(LIST_DATA)),
    when("List the data", 1, "Bash", bash("ls data")),
    when("list answer", 1, "StructuredOutput", answer(items=[{"total": 1}, {"total": 2}])),
    {"when": {"text": "list answer"}, "reply": [{"text": '{"items": [{"total": 1}, {"total": 2}]}'}]},
    {"reply": [{"text": "<<output>>"}]},
]


@dataclass(frozen=True)
class Sql:
    sql: str


@dataclass(frozen=True)
class Rows:
    count: int


@dataclass(frozen=True)
class Total:
    total: int


@dataclass(frozen=True)
class Noted:
    text: str


def run_query(params: Sql, *, context: ToolContext) -> ToolResult[Rows]:
    context.session[Noted].append(Noted(params.sql))
    context.filesystem.write_text("data/query.txt", params.sql)
    return ToolResult("1 row", Rows(1), success=params.sql != "fail")


QUERY = Tool[Sql, Rows](name="run_query", description="Run SQL.", handler=run_query)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("antwort")
    write_files(directory / "pages", {"docs.example/sales.md": "# Sales\n\nSum the column sold."})
    searching = {"engine": "local", "folder": str(directory / "pages")}
    models = {name: {"kind": "scripted", "script": "script.yaml"} for name in ("scripted", MODEL)}
    script = {"answers": ANSWERS}
    with code_server("local", directory / "server", script=script, web_search=searching, models=models) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_is_left(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    with temporary_directory(monkeypatch):
        yield


@pytest.fixture(params=["openai", "claude"])
def provider(request: pytest.FixtureRequest, server: Server) -> tuple[type[Any], Any]:
    """The two things that differ: the class of the workspace section, and a function that makes the adapter."""
    if request.param == "openai":
        return OpenAIContainerWorkspaceSection, lambda **options: adapter_for(server, **options)
    return ClaudeAgentWorkspaceSection, lambda **options: claude_adapter(server, **options)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_files(tmp_path / "data", {"sales.csv": "sold\n10\n20\n", ".git/config": "", "notes.pyc": ""})


@dataclass
class Ran:
    session: Session
    response: Any
    files: dict[str, str]
    previews: Any


def agent(text: str, workspace: Section[Any], output: Any = None) -> Prompt[Any]:
    task = MarkdownSection(title="Task", key="task", template=f"Please {text}.", tools=(QUERY,))
    template: Any = PromptTemplate if output is None else PromptTemplate[output]
    return Prompt(template(ns="parity", key="agent", sections=[task, workspace]))


def run(
    provider: tuple[type[Any], Any], text: str, data: Path, *, output: Any = None, options: Any = None, **more: Any
) -> Ran:
    section, make_adapter = provider
    session = Session()
    workspace = section(
        session=session,
        mounts=(HostMount(data, mount_path="data", exclude_glob=(".git/*", "*.pyc"), max_bytes=1000),),
        allowed_host_roots=(data.parent,),
    )
    with workspace:
        adapter: ProviderAdapter[Any] = make_adapter(**(options or {}))
        response = adapter.evaluate(agent(text, workspace, output), session=session, **more)
        files = {path: workspace.filesystem.read_text(path) for path in sorted(workspace.filesystem.glob("data/*"))}
        return Ran(session, response, files, workspace.mount_previews)


@proves("typed answer", openai="structured output of the API", claude="tool `StructuredOutput` of the CLI")
@proves(
    "audit events",
    openai="`ToolInvoked` of code interpreter when the response arrives",
    claude="`ToolInvoked` of each tool of the CLI when it returns",
)
@proves("tools of the prompt", openai="function tools", claude="in-process MCP server; in the thread of the caller")
def test_one_agent_has_one_typed_answer_and_one_audit_trail(provider, data):
    """Run once with each provider; both must agree with what is written here, and so with each other."""
    ran = run(provider, "sum the sales", data, output=Total)

    assert ran.response.output == Total(30)
    (rendered,) = ran.session[PromptRendered].all()
    assert rendered.tool_names == ("run_query",)
    query, failed, native = ran.session[ToolInvoked].all()
    assert (query.name, query.params, query.result.value, query.origin, query.rendered_output) == (
        "run_query",
        Sql("SELECT 1"),
        Rows(1),
        "client",
        '1 row\n\n{"count":1}',
    )
    assert (failed.name, failed.params, failed.success, failed.origin) == ("run_query", Sql("fail"), False, "client")
    assert (native.origin, native.success) == ("provider", True)
    assert '{"total": 30}' in native.rendered_output
    assert [entry.kind for entry in ran.session.transcript() if entry.kind != "model"] == [
        *("prompt", "tool", "tool", "tool", "answer")
    ]
    (executed,) = ran.session[PromptExecuted].all()
    assert executed.result.output == Total(30)
    assert executed.usage.input_tokens > 0


@proves("rollback of failed tools", openai="session, resources, files", claude="the same")
def test_failed_tool_leaves_session_and_files_as_they_were(provider, data):
    ran = run(provider, "sum the sales", data, output=Total)

    assert ran.session[Noted].all() == (Noted("SELECT 1"),)
    assert ran.files["data/query.txt"] == "SELECT 1"


@proves(
    "`HostMount`, `allowed_host_roots`, globs, `max_bytes`, `mount_previews`",
    openai="copied, then uploaded to a container",
    claude="copied to the working directory",
)
@proves("`filesystem`, `cleanup()`", openai="`ContainerFilesystem`", claude="`HostFilesystem`")
def test_workspace_has_the_mounted_files_and_those_of_the_model(provider, data):
    ran = run(provider, "sum the sales", data, output=Total)

    assert ran.files == {
        "data/query.txt": "SELECT 1",
        "data/report.txt": "made by the model",
        "data/sales.csv": "sold\n10\n20\n",
    }
    (preview,) = ran.previews
    assert (preview.mount_path, preview.entries, preview.bytes_copied) == ("data", ("sales.csv",), 11)
    assert sorted(os.listdir(data)) == [".git", "notes.pyc", "sales.csv"]  # noqa: PTH208 - names only


@proves("list answer", openai="wrapped in an object", claude="wrapped in an object")
def test_list_answer(provider, data):
    assert run(provider, "give a list answer", data, output=list[Total]).response.output == [Total(1), Total(2)]


@proves("`max_turns`", openai="`TurnLimitError`", claude="`TurnLimitError`")
def test_turn_limit(provider, data):
    with pytest.raises(TurnLimitError):
        run(provider, "query for ever", data, options={"max_turns": 2})


@proves("token budget", openai="`BudgetExceededError`", claude="`BudgetExceededError`")
def test_token_budget(provider, data):
    with pytest.raises(BudgetExceededError):
        run(provider, "query for ever", data, budget=Budget(max_total_tokens=20))


@proves("deadline", openai="ends the request", claude="interrupts the CLI")
def test_deadline(provider, data):
    with pytest.raises(DeadlineExceededError):
        run(provider, "wait for ever", data, deadline=Deadline.after(5))


# ── The specification ────────────────────────────────────────────────────────────────────────────────────────────────


def hosted(line: str) -> str:
    """The part of a block that makes the OpenAI adapter, as it is written."""
    (block,) = (one for one in blocks() if line in one)
    start = block.index("adapter = OpenAIAdapter(")
    start = block.rindex("\n", 0, start) + 1
    indent = block[start : block.index("adapter", start)]
    end = block.index(f"\n{indent})\n", start) + len(f"\n{indent})\n")
    return block[start:end]


def claude_adapter_line(line: str) -> dict[str, str]:
    """The replacement of that part by the other adapter."""
    written = hosted(line)
    indent = written[: len(written) - len(written.lstrip())]
    return {written: f'{indent}adapter = ClaudeAgentSDKAdapter(model="{MODEL}")\n'}


@needs_the_specs
@pytest.mark.parametrize("to", ["openai", "claude"])
def test_portable_code_review_of_the_specification(monkeypatch, tmp_path, to):
    """Story 1: "or ClaudeAgentWorkspaceSection", and the adapter."""
    write_files(tmp_path / "repos/myproject", {"src/a.py": "1", "src/b/c.py": "2", ".git/x": "", "src/d.pyc": ""})
    line = "class ReviewResult:"
    changed = {"    return OpenAIContainerWorkspaceSection(": "    return ClaudeAgentWorkspaceSection("}
    replace = {**changed, **claude_adapter_line(line)} if to == "claude" else {}
    defined = run_spec_block(line, root=tmp_path, monkeypatch=monkeypatch, replace=replace)

    assert defined["response"].output == defined["ReviewResult"]("2 files", ["a.py", "b/c.py"], [])
    assert defined["workspace"].mount_previews[0].entries == ("src/a.py", "src/b/c.py")
    assert not defined["workspace"].temp_dir.exists()


@needs_the_specs
def test_hybrid_tools_of_the_specification(monkeypatch, tmp_path):
    """Story 3 with both adapters: the same typed answer, and the same event of the prompt's own tool."""
    line = "class QueryParams:"
    calls: list[Any] = []
    for section, replace in (
        (OpenAIContainerWorkspaceSection, {}),
        (ClaudeAgentWorkspaceSection, claude_adapter_line(line)),
    ):
        session = Session()
        given = {"AnalysisResult": AnalysisResult, "DatabaseConnection": DatabaseConnection}
        with section(session=session) as workspace, closing(DatabaseConnection()) as database:
            defined = run_spec_block(
                line, root=tmp_path, monkeypatch=monkeypatch, replace=replace, workspace=workspace, **given
            )
            resources = ResourceRegistry.build({DatabaseConnection: database})
            prompt = Prompt(defined["template"])
            response = defined["adapter"].evaluate(prompt, session=session, resources=resources)
        assert response.output == AnalysisResult(30)
        own_call, native_call = session[ToolInvoked].all()
        assert (native_call.origin, native_call.success) == ("provider", True)
        assert own_call.result.value == defined["QueryResult"]([{"total": 30}], 1)
        calls.append((own_call.name, own_call.params.sql, own_call.origin, own_call.rendered_output))
    assert calls[0] == calls[1]


@needs_the_specs
@proves("migration", openai="change section and adapter", claude="change section and adapter")
def test_migration_guide_of_the_specification(monkeypatch, tmp_path):
    """The block as written, before and after; its omissions are filled in."""
    write_files(tmp_path / "data", {"one.csv": "1"})
    line = "adapter = ClaudeAgentSDKAdapter("
    (block,) = (one for one in blocks() if line in one)
    filled = {
        "HostMount(...)": 'HostMount("/data")',
        "allowed_host_roots=(...)": 'allowed_host_roots=("/data",)',
        "ClaudeAgentSDKAdapter(...)": f'ClaudeAgentSDKAdapter(model="{MODEL}")',
    }
    before = {block[block.index("# After") :]: ""}
    for replace in (before, {}):
        defined = run_spec_block(
            line, root=tmp_path, monkeypatch=monkeypatch, replace={**replace, **filled}, session=Session()
        )
        workspace = defined["workspace"]
        task = MarkdownSection(title="Task", key="task", template="List the data.")
        prompt = Prompt(PromptTemplate(ns="n", key="k", sections=[task, workspace]))
        with workspace:
            assert "one.csv" in defined["adapter"].evaluate(prompt, session=workspace.session).text
