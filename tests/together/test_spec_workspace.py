"""User stories and migrations of the workspace specification, run as written against antwort.

The specifications are in `shared/specs` beside the repository; the tests are skipped without them.
"""

from __future__ import annotations

import hashlib
import inspect
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fixtures_code_interpreter import code_server
from fixtures_server import Server
from fixtures_spec import NAMES, AnalysisResult, DatabaseConnection, blocks, needs_the_specs, run_spec_block
from fixtures_workspace import adapter_for, script, write_files

from weakincentives.adapters.openai import (
    CompactionConfig,
    CompactionManager,
    CompactionState,
    ContainerConfig,
    ContainerFilesystem,
    FileSearchConfig,
    OpenAIAdapter,
    OpenAIContainerWorkspaceSection,
    OpenAIHostedToolsConfig,
)
from weakincentives.errors import CompactionError, ContainerExpiredError
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate
from weakincentives.resources import ResourceRegistry
from weakincentives.runtime import ContextCompacted, PromptExecuted, Session, ToolInvoked, WorkspaceSynced
from weakincentives.tools import HostMount

MODEL = "gpt-5.2-codex"

pytestmark = needs_the_specs

REVIEW = """
import json, pathlib
found = [str(p.relative_to('/mnt/data/project/src')) for p in pathlib.Path('project/src').resolve().rglob('*.py')]
print(json.dumps({"summary": f"{len(found)} files", "issues": sorted(found), "suggestions": []}))
"""
COUNT = (
    "import os; names = sorted(os.listdir('/mnt/data/data')); open('/mnt/data/data/names.txt', 'w').write(str(names))"
)
DIGESTS = """
import hashlib, pathlib
for path in pathlib.Path('/mnt/data/data').iterdir():
    print(path.name, path.read_text(), hashlib.sha256(path.read_bytes()).hexdigest())
"""


def reply(text: str, turn: int, name: str, **arguments: Any) -> dict[str, Any]:
    return {"when": {"text": text, "turn": turn}, "reply": [{"call": {"name": name, "arguments": arguments}}]}


ANSWERS = [
    reply("Review the Python code", 1, "code_interpreter", code=REVIEW),
    reply("count the files", 1, "code_interpreter", code=COUNT),
    reply("how many were there", 1, "code_interpreter", code="print(len(names))"),
    reply("Analyze sales trends", 1, "run_query", sql="SELECT sum(sold) AS total FROM sales"),
    reply("Analyze sales trends", 2, "web_search", queries=["how to sum sales"]),
    reply("Analyze sales trends", 3, "code_interpreter", code="import json; print(json.dumps({'total': 30}))"),
    reply("List the data", 1, "code_interpreter", code="import os; print(sorted(os.listdir('/mnt/data/data')))"),
    reply("Compute the digests", 1, "code_interpreter", code=DIGESTS),
    {"when": {"text": "Summarize the conversation above"}, "reply": [{"text": "Digests: <<find /[0-9a-f]{64}/>>"}]},
    {"when": {"text": "Repeat all"}, "reply": [{"text": "<<find /[0-9a-f]{64}/>>"}]},
    {"reply": [{"text": "<<output>>"}]},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """antwort instead of OpenAI, with a model of the name in the stories."""
    models = {MODEL: {"kind": "scripted", "script": "script.yaml"}}
    directory = tmp_path_factory.mktemp("antwort")
    everything = {"level": "debug"}
    write_files(directory / "pages", {"docs.example/sales.md": "# Sales\n\nSum the column sold."})
    searching = {"engine": "local", "folder": str(directory / "pages")}
    with code_server(
        "local",
        directory / "server",
        script={**script({}), "answers": ANSWERS},
        web_search=searching,
        models=models,
        log=everything,
    ) as running:
        yield running


@pytest.fixture
def run_block(server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run the block that contains a line, with unsupported parts replaced; return the names that it defines."""
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "none")

    def run(line: str, *, replace: Mapping[str, str] | None = None, **given: Any) -> dict[str, Any]:
        return run_spec_block(line, root=tmp_path, monkeypatch=monkeypatch, replace=replace, **given)

    return run


@pytest.fixture(autouse=True)
def nothing_is_left(server):
    yield
    with server.client() as client:
        assert list(client.containers.list()) == []


def test_story_1_portable_code_review(run_block, tmp_path, capsys):
    write_files(tmp_path / "repos/myproject", {"src/a.py": "1", "src/b/c.py": "2", ".git/x": "", "src/d.pyc": ""})
    defined = run_block("class ReviewResult:")

    assert defined["response"].output == defined["ReviewResult"]("2 files", ["a.py", "b/c.py"], [])
    assert capsys.readouterr().out == f"{defined['response'].output}\n"
    assert defined["workspace"].mount_previews[0].entries == ("src/a.py", "src/b/c.py")
    assert not defined["workspace"].temp_dir.exists()


def analysis_prompt(task: str, workspace: Any) -> Prompt[Any]:
    section = MarkdownSection(title="Task", key="task", template=task)
    return Prompt(PromptTemplate(ns="analysis", key="task", sections=[section, workspace]))


def test_story_2_long_running_analysis(run_block, tmp_path):
    write_files(tmp_path / "data/analysis", {"one.csv": "1", "two.csv": "2"})
    session = Session()
    answers: list[Any] = []

    with pytest.warns(UserWarning, match="give results_dir"):
        defined = run_block(
            "for task in analysis_tasks:",
            session=session,
            analysis_tasks=["Please count the files.", "And how many were there?"],
            create_analysis_prompt=analysis_prompt,
            process_results=answers.append,
        )

    assert answers == [None, None]
    assert [event.result.message.splitlines()[0] for event in session[ToolInvoked].all()] == ["22", "2"]
    (synced,) = session[WorkspaceSynced].all()
    assert (synced.added, synced.unchanged) == (("data/names.txt",), 2)
    assert not defined["workspace"].temp_dir.exists()


def row_counts(server: Server) -> dict[str, int]:
    """The number of rows of each table of the server's database."""
    with closing(sqlite3.connect(server.directory / ".antwort" / "antwort.db")) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: database.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in tables}  # noqa: S608 - names from the database


def files_with(server: Server, *texts: str) -> list[tuple[str, str]]:
    """The files of the server that contain one of these texts: database, blobs, keys, logs, temporary files."""
    files = [path for path in server.directory.rglob("*") if path.is_file()]
    assert {"antwort.db", "log"} <= {path.name for path in files}
    return [(path.name, text) for path in files for text in texts if text.encode() in path.read_bytes()]


LOW_THRESHOLD = "threshold_tokens=1_000"


@pytest.mark.filterwarnings("ignore:sync_on_cleanup=True without results_dir")
@pytest.mark.parametrize("threshold", ["threshold_tokens=100_000", LOW_THRESHOLD, f"{LOW_THRESHOLD}, mode='client'"])
def test_story_2_leaves_nothing_on_the_server(run_block, server, tmp_path, threshold):
    """The story with strings that occur nowhere else, as written and with a threshold that is exceeded."""
    in_prompt, in_file, in_name = (hashlib.sha256(f"{part} {threshold}".encode()).hexdigest() for part in "123")
    in_output = hashlib.sha256(in_file.encode()).hexdigest()  # made by the code in the container
    write_files(tmp_path / "data/analysis", {f"{in_name}.csv": in_file})
    before = row_counts(server)
    session = Session()
    answers: list[str] = []
    session.dispatcher.subscribe(PromptExecuted, lambda event: answers.append(event.result.text))

    run_block(
        "for task in analysis_tasks:",
        replace={"threshold_tokens=100_000": threshold},
        session=session,
        analysis_tasks=[
            *(f"Remember {in_prompt}. This is part {number}{' of many' * 60}." for number in range(12)),
            "Compute the digests.",
            "Repeat all.",
        ],
        create_analysis_prompt=analysis_prompt,
        process_results=lambda output: None,
    )

    (invoked,) = session[ToolInvoked].all()
    assert invoked.result.message.split()[:3] == [in_name + ".csv", in_file, in_output]
    assert {in_prompt, in_file, in_name, in_output} <= set(answers[-1].split())
    compactions = len(session[ContextCompacted].all())
    assert compactions > 1 if LOW_THRESHOLD in threshold else compactions == 0
    with server.client() as client:
        assert list(client.containers.list()) == []
    assert row_counts(server) == before
    assert files_with(server, in_prompt, in_file, in_output) == []
    server.stop()  # until then, SQLite's log has the names of files in containers that existed
    try:
        assert files_with(server, in_prompt, in_file, in_output, in_name) == []
    finally:
        server.start()


def test_story_3_hybrid_tools(run_block, server):
    session = Session()
    workspace = OpenAIContainerWorkspaceSection(session=session)
    given = {"AnalysisResult": AnalysisResult, "DatabaseConnection": DatabaseConnection}
    defined = run_block("class QueryParams:", session=session, workspace=workspace, **given)
    prompt = Prompt(defined["template"])
    adapter: OpenAIAdapter = defined["adapter"]
    assert [tool.name for tool in adapter.native_tools] == ["code_interpreter", "web_search"]
    with workspace, closing(DatabaseConnection()) as database:
        resources = ResourceRegistry.build({DatabaseConnection: database})
        response = adapter.evaluate(prompt, session=session, resources=resources)

    assert response.output == AnalysisResult(30)
    client_call, search, provider_call = session[ToolInvoked].all()
    assert (client_call.name, client_call.result.value) == ("run_query", defined["QueryResult"]([{"total": 30}], 1))
    assert (search.name, search.origin, search.success) == ("web_search", "provider", True)
    assert (provider_call.name, provider_call.origin) == ("code_interpreter", "provider")


def listed(workspace: Any, adapter: OpenAIAdapter) -> str:
    section = MarkdownSection(title="Task", key="task", template="List the data.")
    prompt = Prompt(PromptTemplate(ns="n", key="k", sections=[section, workspace]))
    with workspace:
        return adapter.evaluate(prompt, session=workspace.session).text


def test_migration_from_vfs_tools(run_block, server, tmp_path):
    write_files(tmp_path / "data", {"one.csv": "1"})
    workspace = run_block("# After: Container workspace", session=Session())["workspace"]

    assert listed(workspace, adapter_for(server, model=MODEL)) == "['one.csv']\n"


def test_migration_from_claude(run_block, tmp_path):
    """Without the Claude part, which test_claude_parity.py runs; omissions of the example are filled in."""
    write_files(tmp_path / "data", {"one.csv": "1"})
    line = "adapter = ClaudeAgentSDKAdapter("
    (block,) = (one for one in blocks() if line in one)
    before = block[: block.index("# After")]
    left_out = {"HostMount(...)": 'HostMount("/data")', "allowed_host_roots=(...)": 'allowed_host_roots=("/data",)'}
    defined = run_block(line, replace={before: "", **left_out}, session=Session())

    assert listed(defined["workspace"], defined["adapter"]) == "['one.csv']\n"


# ── Definitions ──────────────────────────────────────────────────────────────────────────────────────────────────────

DEFINITION_NAMES = """
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal
from openai import OpenAI
from weakincentives import Budget, BudgetTracker, Deadline, FrozenDataclass, PromptTemplate, ResourceRegistry, WinkError
from weakincentives.adapters import PromptResponse, ProviderAdapter, ToolChoice
from weakincentives.adapters.core import OutputT
from weakincentives.adapters.openai import OpenAIClientConfig, OpenAIModelConfig
from weakincentives.adapters.openai.workspace import _WorkspaceSectionParams
from weakincentives.filesystem import Filesystem, HostMountPreview
from weakincentives.prompt import SessionProtocol
"""
DEFINED = {
    "class OpenAIHostedToolsConfig:": OpenAIHostedToolsConfig,
    "class ContainerConfig:": ContainerConfig,
    "class CompactionConfig:": CompactionConfig,
    "class FileSearchConfig:": FileSearchConfig,
    "class OpenAIContainerWorkspaceSection(": OpenAIContainerWorkspaceSection,
    "class HostMount:": HostMount,
    "class ContainerFilesystem(": ContainerFilesystem,
    "class CompactionState:": CompactionState,
    "class CompactionManager:": CompactionManager,
    "class OpenAIAdapter(ProviderAdapter[Any]):": OpenAIAdapter,
    "class ContainerExpiredError(": ContainerExpiredError,
    "class CompactionError(": CompactionError,
}
STORIES = (
    *("def create_workspace(", "for task in analysis_tasks:", "def run_query(", "# Before: VFS tools"),
    *("# Before: Claude Agent SDK", "def _build_hosted_tools("),
)


def test_all_blocks_of_the_specification_are_covered():
    lines = [*DEFINED, *STORIES]

    assert [sum(line in block for line in lines) for block in blocks()] == [1] * len(lines)


@pytest.mark.parametrize("line", DEFINED)
def test_definitions_run_as_written_and_describe_the_library(run_block, line):
    """Constructors and methods take the parameters of the block, with the same defaults, and properties exist."""
    library: Any = DEFINED[line]
    names: dict[str, Any] = {}
    exec(compile(NAMES + DEFINITION_NAMES, "names", "exec"), names)  # noqa: S102 - our own imports
    written = run_block(line, **names)[library.__name__]

    for name, member in vars(written).items():
        if isinstance(member, property):
            assert isinstance(getattr(library, name), property)
        elif inspect.isfunction(member) and (name == "__init__" or not name.startswith("_")):
            accepted, wanted = defaults_of(getattr(library, name)), defaults_of(member)
            optional = {one: default for one, default in wanted.items() if default is not inspect.Parameter.empty}
            assert wanted.keys() <= accepted.keys()
            assert optional.items() <= accepted.items()


def defaults_of(function: Any) -> dict[str, object]:
    return {name: one.default for name, one in inspect.signature(function).parameters.items()}
