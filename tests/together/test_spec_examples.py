"""Examples of the specifications, run as written, and tests of the same usage.

The specifications are in `shared/specs` beside the repository. Tests that need them are skipped without them.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fake_responses_api import FakeResponse, FakeResponsesApi, message, response, responses_api
from fixtures_server import Server, run_server
from openai import OpenAI

from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.adapters.openai.native_tools.file_search_section import OpenAIFileSearchSection
from weakincentives.errors import NativeToolError
from weakincentives.prompt import (
    MarkdownSection,
    NativeDeclaration,
    NativeTool,
    Prompt,
    ProviderTool,
    Section,
    SupportsDataclass,
    Tool,
    ToolContext,
    ToolExample,
    ToolResult,
)
from weakincentives.runtime.events import InProcessEventBus, PromptExecuted, PromptRendered, ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, native
from weakincentives.tools import HostMount, VfsPath

SPECS = Path(__file__).parents[2].parent / "shared" / "specs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)

needs_the_specs = pytest.mark.skipif(not SPECS.is_dir(), reason="the specifications do not lie beside this clone")


# ── Import paths ─────────────────────────────────────────────────────────────────────────────────────────────────────

PATHS = {
    "weakincentives": "FrozenDataclass",
    "weakincentives.prompt": "Prompt PromptTemplate Section MarkdownSection Tool NativeTool ProviderTool ToolContext "
    "ToolExample ToolResult",
    "weakincentives.prompt.section": "Section",
    "weakincentives.prompt.tool": "NativeTool",
    "weakincentives.prompt.tool_result": "ToolResult",
    "weakincentives.prompt._types": "SupportsDataclass",
    "weakincentives.tools": "HostMount VfsPath VfsToolsSection OpenAICodeInterpreterTool",
    "weakincentives.runtime.events": "InProcessDispatcher InProcessEventBus NullEventBus ToolInvoked PromptRendered "
    "PromptExecuted",
    "weakincentives.runtime.session": "Session",
    "weakincentives.adapters.openai": "OpenAIAdapter OpenAIModelConfig OpenAIClientConfig OpenAIHostedToolsConfig "
    "FileSearchConfig citations download ContainerConfig OpenAIContainerWorkspaceSection ContainerFilesystem "
    "ContainerManager ContainerExpiredError FileTypes",
    "weakincentives.adapters.openai.native_tools.file_search_section": "OpenAIFileSearchSection",
    "weakincentives.adapters.openai.native_tools.web_search_section": "OpenAIWebSearchSection",
    "weakincentives.adapters.openai.native_tools.code_interpreter_section": "OpenAICodeInterpreterSection",
    "weakincentives.adapters.openai.native_tools.shell_section": "OpenAIShellSection",
    "weakincentives.adapters.openai.native_tools.apply_patch_section": "OpenAIApplyPatchSection",
}


@pytest.mark.parametrize("path, name", [(path, name) for path, names in PATHS.items() for name in names.split()])
def test_contract_import_paths(path, name):
    assert hasattr(importlib.import_module(path), name)


def test_aliases_are_the_same_object():
    from weakincentives.prompt import section, tool, tool_result  # noqa: PLC0415 - the point of the test

    assert (section.Section, tool.NativeTool, tool_result.ToolResult) == (Section, NativeTool, ToolResult)


# ── As written ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Example(NamedTuple):
    """One block of a specification, by a line that only it has."""

    spec: str
    line: str


CODE_TOOL = Example("000", "OpenAICodeInterpreterTool(")
NATIVE_SECTION = Example("002", "class OpenAIFileSearchSection(Section[FileSearchParams])")
NATIVE_PROMPT = Example("002", "using the file search tool if needed")
MIXED_PROMPT = Example("002", "bus=bus,")
NATIVE_TOOL = Example("003", "web_search_tool = NativeTool[")
EXAMPLES = (CODE_TOOL, NATIVE_SECTION, NATIVE_PROMPT, MIXED_PROMPT, NATIVE_TOOL)


def blocks_of(spec: str) -> list[str]:
    (path,) = SPECS.glob(f"{spec}*")
    return BLOCK.findall(path.read_text(encoding="utf-8"))


@needs_the_specs
@pytest.mark.parametrize("spec", ["000", "002", "003"])
def test_all_spec_examples_are_covered(spec):
    known = [example for example in EXAMPLES if example.spec == spec]

    assert [sum(example.line in block for example in known) for block in blocks_of(spec)] == [1] * len(known)


@pytest.fixture
def run_block(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Puts the one block of a specification that holds a certain line into a file, runs it, and returns its names.

    What is impossible in it is changed by `replace`: what to look for, and what to write instead.
    """

    def run(example: Example, *, replace: Mapping[str, str] | None = None) -> dict[str, Any]:
        (source,) = (block for block in blocks_of(example.spec) if example.line in block)
        for written, instead in (replace or {}).items():
            assert source.count(written) == 1
            source = source.replace(written, instead)
        file = tmp_path / "specification.py"
        file.write_text(source, encoding="utf-8")
        monkeypatch.chdir(tmp_path)  # examples write files to the working directory
        description = spec_from_file_location(file.stem, file)
        assert description is not None
        assert description.loader is not None
        module = module_from_spec(description)
        monkeypatch.setitem(sys.modules, file.stem, module)  # dataclasses resolve annotations there
        description.loader.exec_module(module)
        return vars(module)

    return run


RESEARCH = {
    "answers": [
        {
            "when": {"text": "findings about LLM safety", "turn": 1, "tool": "echo"},
            "reply": [{"call": {"name": "echo", "arguments": {"text": "hello"}}}],
        },
        {"when": {"output": "hello"}, "reply": [{"text": "Summary."}]},
    ]
}


@pytest.fixture
def antwort(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """antwort instead of OpenAI, with a model of the name in the examples."""
    directory = tmp_path_factory.mktemp("antwort")
    (directory / "research.yaml").write_text(json.dumps(RESEARCH), encoding="utf-8")
    with run_server(directory, {"models": {"gpt-4.1": {"kind": "scripted", "script": "research.yaml"}}}) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        yield server


@needs_the_specs
def test_native_section_skeleton_runs_as_written(run_block):
    defined = run_block(NATIVE_SECTION)
    section_type, params_type = defined["OpenAIFileSearchSection"], defined["FileSearchParams"]
    section = section_type(default_params=params_type(corpus_ids=("c1",)))

    assert section.clone().default_params == params_type(corpus_ids=("c1",))
    assert section.clone(default_params=params_type(max_results=9)).default_params.max_results == 9
    rendered = Prompt(ns="test", key="skeleton", sections=(section,)).bind(params_type()).render()
    assert (rendered.text, rendered.tools, rendered.native_tools) == ("", (), ())


@needs_the_specs
def test_prompt_with_native_section_runs_as_written(run_block):
    defined = run_block(NATIVE_PROMPT)
    rendered = defined["prompt"].bind(defined["ContentParams"](topic="LLM safety")).render()

    assert rendered.text == (
        "## 1. Task (task)\n\nSummarize the latest findings about LLM safety using the file search tool if needed."
    )
    assert [declared.capability for declared in rendered.native_tools] == ["file_search"]
    assert defined["prompt"].name == "native_file_search"


@needs_the_specs
def test_mixed_prompt_runs_as_written(run_block, antwort):
    defined = run_block(MIXED_PROMPT)

    assert defined["response"].text == "Summary."
    (invoked,) = defined["session"][ToolInvoked].all()
    assert (invoked.name, invoked.params, invoked.result.value) == (
        "echo",
        defined["EchoParams"]("hello"),
        defined["EchoParams"]("hello"),
    )
    assert [entry.kind for entry in defined["session"].transcript()] == ["prompt", "model", "tool", "model", "answer"]


@needs_the_specs
def test_native_tool_runs_as_written(run_block):
    defined = run_block(NATIVE_TOOL)
    tool = defined["web_search_tool"]

    assert (tool.name, tool.handler, tool.accepts_overrides) == ("web_search", None, False)
    assert tool.params_type is defined["WebSearchParams"]
    section = MarkdownSection(title="Task", key="task", template="Search.", tools=(tool,))
    rendered = Prompt(ns="test", key="web", sections=(section,)).render()
    assert rendered.native_tools == (NativeDeclaration("web_search", "web_search", tool=tool, origin="section 'task'"),)


DOWNLOAD = """for content in response.output or []:
    for item in content.get("annotations", []) or []:
        if item["type"] == "container_file_citation":
            downloaded = client.container_files.content(
                container_id=item["container_id"],
                file_id=item["file_id"],
            )
            Path(item["filename"]).write_bytes(downloaded)
"""
INSTEAD = """from weakincentives.adapters.openai import citations, download

for citation in citations(response):
    download(client, citation, Path(citation.filename))
"""
PLOT = """
import pandas as pd
table = pd.read_csv("/mnt/data/input.csv")
table.plot.hist().figure.savefig("/mnt/data/histogram.png")
print(table["value"].mean())
"""
CODE = {
    "id": "ci_1",
    "type": "code_interpreter_call",
    "status": "completed",
    "code": "print(3)",
    "container_id": "cntr_1",
    "outputs": [{"type": "logs", "logs": "3"}],
}
CITED = {
    "type": "container_file_citation",
    "container_id": "cntr_1",
    "file_id": "cfile_1",
    "filename": "histogram.png",
    "start_index": 0,
    "end_index": 3,
}


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeResponsesApi]:
    """Prepared responses instead of OpenAI."""
    with responses_api(*[response(CODE, message("The mean is 3.", CITED))] * 2) as fake:
        fake.routes["GET /containers/cntr_1/files/cfile_1/content"] = lambda request: FakeResponse(b"PNG")
        monkeypatch.setenv("OPENAI_BASE_URL", fake.url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        yield fake


ANNOTATIONS_LOOP = """for content in response.output or []:
    for item in content.get("annotations", []) or []:
"""
CITED_ITEMS = """for content in [response.output[-1].content[0]]:
    for item in [annotation.to_dict() for annotation in content.annotations]:
"""


@needs_the_specs
def test_download_loop_fails_with_an_error_that_names_the_helper(run_block, api):
    """The example as written; then with its first impossible line repaired, to reach the second one."""
    with pytest.raises(AttributeError, match=r"no attribute 'get': .*openai\.citations\(response\)"):
        run_block(CODE_TOOL)
    with pytest.raises(AttributeError, match=r"no attribute 'container_files': .*openai\.download\(client, citation"):
        run_block(CODE_TOOL, replace={ANNOTATIONS_LOOP: CITED_ITEMS})


def test_download_hints_add_no_attribute(api):
    with OpenAI() as client:
        with OpenAIAdapter(model="gpt-4.1", client=client) as adapter:
            response = adapter.client.responses.create(model="gpt-4.1", input="Go.")
        with pytest.raises(AttributeError, match=r"openai\.citations\(response\)"):
            response.output[0].get("annotations")  # pyright: ignore - the point of the test
        assert not hasattr(client, "container_files")
        assert not any(hasattr(item, "get") for item in response.output)


@needs_the_specs
def test_code_interpreter_runs_as_written(run_block, api, capsys):
    """Without the download loop, which no SDK supports; `citations` and `download` replace it."""
    defined = run_block(CODE_TOOL, replace={DOWNLOAD: INSTEAD})

    assert capsys.readouterr().out == "The mean is 3.\n"
    assert Path("histogram.png").read_bytes() == b"PNG"
    (sent,) = api.bodies
    assert sent["tools"] == [
        {
            "type": "code_interpreter",
            "container": {"type": "auto", "memory_limit": "4g", "file_ids": ["file_csv_upload"]},
        }
    ]
    tool = defined["code_interpreter_tool"]
    assert (tool.name, tool.provider, tool.handle_provider_output) == (
        "openai_python",
        "openai",
        defined["identity_provider_output"],
    )


ANALYSIS = {
    "answers": [
        {
            "when": {"text": "histogram", "turn": 1},
            "reply": [{"call": {"name": "code_interpreter", "arguments": {"code": PLOT}}}],
        },
        {"when": {"text": "histogram", "turn": 2}, "reply": [{"text": "The mean is <<output>> See histogram.png."}]},
    ]
}


@needs_the_specs
def test_code_interpreter_runs_as_written_on_antwort(run_block, tmp_path_factory, monkeypatch, capsys):
    """As above, with the file id of antwort: the example expects an id of an earlier upload."""
    directory = tmp_path_factory.mktemp("antwort")
    (directory / "analysis.yaml").write_text(json.dumps(ANALYSIS), encoding="utf-8")
    models = {"gpt-4.1": {"kind": "scripted", "script": "analysis.yaml"}}
    with run_server(directory, {"models": models, "providers": {"code_interpreter": {"enabled": True}}}) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        with server.client() as client:
            uploaded = client.files.create(file=("input.csv", b"value\n2\n4\n"), purpose="user_data")
        run_block(CODE_TOOL, replace={DOWNLOAD: INSTEAD, "file_csv_upload": uploaded.id})

    assert capsys.readouterr().out.startswith("The mean is 3.0")
    assert Path("histogram.png").read_bytes().startswith(b"\x89PNG")


@needs_the_specs
def test_example_tool_works_in_a_prompt(run_block, api):
    """The mount is below the allowed roots, which the example leaves to the orchestrator."""
    tool = run_block(CODE_TOOL, replace={DOWNLOAD: ""})["code_interpreter_tool"]
    Path("sunfish").mkdir()
    Path("sunfish", "readme.md").write_text("Chess.", encoding="utf-8")
    section = MarkdownSection(title="Task", key="task", template="Compute.", tools=(tool,))
    with pytest.raises(NativeToolError, match="allowed_host_roots is empty"):
        OpenAIAdapter(model="gpt-4.1").evaluate(Prompt(ns="n", key="k", sections=(section,)), session=Session())

    api.routes["POST /files"] = lambda request: FakeResponse({"id": "file_1", "object": "file"})
    api.routes["DELETE /files/file_1"] = lambda request: FakeResponse({"id": "file_1", "deleted": True})
    allowed = dataclasses.replace(tool, config=dataclasses.replace(tool.config, allowed_host_roots=(Path.cwd(),)))
    session = Session()
    prompt = Prompt(ns="n", key="k", sections=(section.clone(tools=(allowed,)),))
    answer = OpenAIAdapter(model="gpt-4.1", tool_choice="required").evaluate(prompt, session=session)

    assert answer.text == "The mean is 3."
    (event,) = session[ToolInvoked].all()
    assert (event.name, event.capability, event.result.message) == ("openai_python", "code_interpreter", "3")
    assert isinstance(event.result.value, dict)
    assert event.result.value["outputs"] == CODE["outputs"]
    assert api.bodies[-1]["tools"][0]["container"]["file_ids"] == ["file_csv_upload", "file_1"]


@needs_the_specs
def test_native_tool_is_evaluated(run_block, api):
    tool = run_block(NATIVE_TOOL)["web_search_tool"]
    search = {
        "id": "ws_1",
        "type": "web_search_call",
        "status": "completed",
        "action": {"type": "search", "query": "x"},
    }
    api.responses = FakeResponsesApi.to_responses([response(search, message("Sunny."))])
    section = MarkdownSection(title="Task", key="task", template="Search.", tools=(tool,))
    session = Session()
    OpenAIAdapter(model="gpt-4.1").evaluate(Prompt(ns="n", key="k", sections=(section,)), session=session)

    (event,) = session[ToolInvoked].all()
    assert event.params == tool.params_type(query="x")
    assert event.result.value == tool.result_type(payload=search)
    assert api.bodies[0]["tools"] == [{"type": "web_search"}]


# ── Variations of the examples ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Corpora:
    ids: tuple[str, ...] = ()
    most: int = 5


class CorpusSection(Section[Corpora]):
    """A section with a constructor and a clone of its own, and neither text nor tools."""

    def __init__(self, *, default_params: Corpora | None = None) -> None:
        super().__init__(
            title="Corpora",
            key="corpora",
            default_params=default_params or Corpora(),
            tools=(),
            accepts_overrides=False,
        )

    def render(self, params: SupportsDataclass | None, depth: int, number: str) -> str:
        return ""

    def clone(self, **kwargs: Any) -> CorpusSection:
        return CorpusSection(default_params=kwargs.get("default_params", self.default_params))


@dataclass(slots=True)
class Task:
    topic: str


@dataclass(slots=True)
class Echo:
    text: str


def echo(params: Echo, *, context: ToolContext) -> ToolResult[Echo]:
    _ = context
    return ToolResult.success(params)


def research() -> Prompt[Any]:
    return Prompt(
        ns="research",
        key="mixed",
        name="mixed_research",
        sections=(
            OpenAIFileSearchSection(),
            CorpusSection(),
            MarkdownSection[Task](
                title="Task",
                key="task",
                template="Write about ${topic}.",
                tools=(Tool[Echo, Echo](name="echo", description="Echo the text.", handler=echo),),
            ),
        ),
    )


def test_custom_native_section_renders_no_text():
    clone = CorpusSection(default_params=Corpora(("c1",))).clone()

    assert clone.default_params == Corpora(("c1",))
    assert research().bind(Task("cats")).render().text == "## 1. Task (task)\n\nWrite about cats."
    assert research().find_section(CorpusSection) is not None


def test_native_and_function_tools_in_one_evaluation():
    searched = ToolResult.ok({"results": ["a.txt"]})
    bus, session = InProcessEventBus(), Session()
    received: list[object] = []
    for event_type in (PromptRendered, ToolInvoked, PromptExecuted):
        bus.subscribe(event_type, received.append)
    script = [
        call("echo", text="hello"),
        native("file_search", params={"queries": ["cats"]}, result=searched, provider="openai", text="Done."),
    ]

    response = ScriptedAdapter(script, provider="openai").evaluate(
        research(), Task("cats"), Echo("hello"), parse_output=True, bus=bus, session=session
    )

    assert (response.text, response.output) == ("Done.", None)
    assert [type(event) for event in received] == [PromptRendered, ToolInvoked, ToolInvoked, PromptExecuted]
    client_call, provider_call = session[ToolInvoked].all()
    assert (client_call.name, client_call.origin, client_call.params) == ("echo", "client", Echo("hello"))
    assert (provider_call.name, provider_call.origin, provider_call.provider, provider_call.result) == (
        "file_search",
        "provider",
        "openai",
        searched,
    )


@dataclass
class Search:
    query: str


@dataclass
class Found:
    payload: dict[str, object]


def test_native_tool_with_examples_and_no_handler():
    tool = NativeTool[Search, Found](
        name="web_search",
        description="Search the web.",
        examples=(ToolExample(description="The weather.", input=Search("weather"), output=Found({"results": []})),),
    )

    assert '{"query":"weather"} → {"payload":{"results":[]}}' in tool.spec().description


def test_mount_path_segments_of_str_and_vfspath():
    for given in (VfsPath(("workspace", "sunfish")), "workspace/sunfish", "/workspace/sunfish"):
        mount = HostMount(host_path="sunfish", mount_path=given, include_glob=("*.py",), max_bytes=600_000)

        assert mount.mount_path is not None
        assert "/" + "/".join(mount.mount_path.segments) == "/workspace/sunfish"


def test_provider_tool_hook_with_mapping():
    def identity(result: dict[str, object], context: ToolContext) -> ToolResult[dict[str, object]]:
        return ToolResult(message=str(result.get("output_text") or ""), value=result, success=True)

    tool = ProviderTool[None, dict[str, object], None](
        name="openai_python",
        description="Run Python.",
        provider="openai",
        config=None,
        handle_provider_output=identity,
    )

    assert tool.result_type == dict[str, object]
    assert tool.handle_provider_output is identity
