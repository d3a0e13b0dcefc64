"""What the written specifications show, run as written; and the same usage in our own words.

The specifications lie beside the repository, in `shared/specs`, and not in every clone. Only the parts that are
marked as needing them are skipped without.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from weakincentives.adapters.openai.native_tools.file_search_section import OpenAIFileSearchSection
from weakincentives.adapters.scripted import ScriptedAdapter, call, native, say
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
from weakincentives.tools import HostMount, VfsPath

SPECS = Path(__file__).parents[2].parent / "shared" / "specs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)

needs_the_specs = pytest.mark.skipif(not SPECS.is_dir(), reason="the specifications do not lie beside this clone")


# ── Import paths ─────────────────────────────────────────────────────────────────────────────────────────────────────

PATHS = {
    "weakincentives.prompt": "Prompt PromptTemplate Section MarkdownSection Tool NativeTool ProviderTool ToolContext "
    "ToolExample ToolResult",
    "weakincentives.prompt.section": "Section",
    "weakincentives.prompt.tool": "NativeTool",
    "weakincentives.prompt.tool_result": "ToolResult",
    "weakincentives.prompt._types": "SupportsDataclass",
    "weakincentives.tools": "HostMount VfsPath VfsToolsSection",
    "weakincentives.runtime.events": "InProcessDispatcher InProcessEventBus NullEventBus ToolInvoked PromptRendered "
    "PromptExecuted",
    "weakincentives.runtime.session": "Session",
    "weakincentives.adapters.openai.native_tools.file_search_section": "OpenAIFileSearchSection",
}


@pytest.mark.parametrize("path, name", [(path, name) for path, names in PATHS.items() for name in names.split()])
def test_the_name_is_where_the_contract_says(path, name):
    assert hasattr(importlib.import_module(path), name)


def test_a_name_is_the_same_wherever_it_is_imported_from():
    from weakincentives.prompt import section, tool, tool_result  # noqa: PLC0415 - the point of the test

    assert (section.Section, tool.NativeTool, tool_result.ToolResult) == (Section, NativeTool, ToolResult)


# ── As written ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def run_block(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Runs the one block of a specification that holds a certain line, and returns what it defined."""

    def run(spec: str, line: str, *, replace: str = "", **names: object) -> dict[str, Any]:
        (path,) = SPECS.glob(f"{spec}*")
        (source,) = (block for block in BLOCK.findall(path.read_text(encoding="utf-8")) if line in block)
        assert not replace or source.count(replace) == 1
        module = ModuleType("specification")
        monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look their annotations up there
        vars(module).update(names)
        code = compile(source.replace(replace, "") if replace else source, str(path), "exec", dont_inherit=True)
        exec(code, vars(module))  # noqa: S102 - our own specification
        return vars(module)

    return run


@needs_the_specs
def test_the_skeleton_of_a_native_section_runs_as_written(run_block):
    defined = run_block("002", "class OpenAIFileSearchSection(Section[FileSearchParams])")
    section_type, params_type = defined["OpenAIFileSearchSection"], defined["FileSearchParams"]
    section = section_type(default_params=params_type(corpus_ids=("c1",)))

    assert section.clone().default_params == params_type(corpus_ids=("c1",))
    assert section.clone(default_params=params_type(max_results=9)).default_params.max_results == 9
    rendered = Prompt(ns="test", key="skeleton", sections=(section,)).bind(params_type()).render()
    assert (rendered.text, rendered.tools, rendered.native_tools) == ("", (), ())


@needs_the_specs
def test_a_prompt_with_a_native_section_is_built_as_written(run_block):
    defined = run_block("002", "using the file search tool if needed")
    rendered = defined["prompt"].bind(defined["ContentParams"](topic="LLM safety")).render()

    assert rendered.text == (
        "## 1. Task (task)\n\nSummarize the latest findings about LLM safety using the file search tool if needed."
    )
    assert [declared.capability for declared in rendered.native_tools] == ["file_search"]
    assert defined["prompt"].name == "native_file_search"


@needs_the_specs
def test_the_mixed_prompt_is_evaluated_as_written(run_block):
    """All but one line: the adapter is a scripted one under the same name, since no server is asked here."""

    def scripted(*, model: str) -> ScriptedAdapter:
        assert model == "gpt-4.1"
        return ScriptedAdapter([call("echo", text="hello"), say("Summary.")], provider="openai")

    defined = run_block(
        "002",
        "bus=bus,",
        replace="from weakincentives.adapters.openai import OpenAIAdapter\n",
        OpenAIAdapter=scripted,
    )

    assert defined["response"].text == "Summary."
    (invoked,) = defined["session"][ToolInvoked].all()
    assert (invoked.name, invoked.params, invoked.result.value) == (
        "echo",
        defined["EchoParams"]("hello"),
        defined["EchoParams"]("hello"),
    )
    (first, _) = defined["adapter"].requests
    assert first.rendered.text.endswith("Summarize the latest findings about LLM safety.")
    assert [tool.name for tool in first.rendered.tools] == ["echo"]
    assert [declared.capability for declared in first.rendered.native_tools] == ["file_search"]


@needs_the_specs
def test_a_native_tool_is_declared_as_written(run_block):
    defined = run_block("003", "web_search_tool = NativeTool[")
    tool = defined["web_search_tool"]

    assert (tool.name, tool.handler, tool.accepts_overrides) == ("web_search", None, False)
    assert tool.params_type is defined["WebSearchParams"]
    section = MarkdownSection(title="Task", key="task", template="Search.", tools=(tool,))
    rendered = Prompt(ns="test", key="web", sections=(section,)).render()
    assert rendered.native_tools == (NativeDeclaration("web_search", "web_search", tool=tool, origin="section 'task'"),)


# ── In our own words ─────────────────────────────────────────────────────────────────────────────────────────────────


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


def test_a_section_of_ones_own_stands_in_the_tree_and_leaves_no_trace():
    clone = CorpusSection(default_params=Corpora(("c1",))).clone()

    assert clone.default_params == Corpora(("c1",))
    assert research().bind(Task("cats")).render().text == "## 1. Task (task)\n\nWrite about cats."
    assert research().find_section(CorpusSection) is not None


def test_native_and_function_tools_are_used_in_one_evaluation():
    searched = ToolResult.ok({"results": ["a.txt"]})
    bus, session = InProcessEventBus(), Session()
    heard: list[object] = []
    for event_type in (PromptRendered, ToolInvoked, PromptExecuted):
        bus.subscribe(event_type, heard.append)
    script = [
        call("echo", text="hello"),
        native("file_search", params={"queries": ["cats"]}, result=searched, provider="openai", text="Done."),
    ]

    response = ScriptedAdapter(script, provider="openai").evaluate(
        research(), Task("cats"), Echo("hello"), parse_output=True, bus=bus, session=session
    )

    assert (response.text, response.output) == ("Done.", None)
    assert [type(event) for event in heard] == [PromptRendered, ToolInvoked, ToolInvoked, PromptExecuted]
    ours, theirs = session[ToolInvoked].all()
    assert (ours.name, ours.origin, ours.params) == ("echo", "client", Echo("hello"))
    assert (theirs.name, theirs.origin, theirs.provider, theirs.result) == (
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


def test_a_native_tool_is_declared_with_examples_and_without_a_handler():
    tool = NativeTool[Search, Found](
        name="web_search",
        description="Search the web.",
        examples=(ToolExample(description="The weather.", input=Search("weather"), output=Found({"results": []})),),
    )

    assert '{"query":"weather"} → {"payload":{"results":[]}}' in tool.spec().description


def test_the_parts_of_a_mount_path_can_be_read_however_it_was_given():
    for given in (VfsPath(("workspace", "sunfish")), "workspace/sunfish", "/workspace/sunfish"):
        mount = HostMount(host_path="sunfish", mount_path=given, include_glob=("*.py",), max_bytes=600_000)

        assert mount.mount_path is not None
        assert "/" + "/".join(mount.mount_path.segments) == "/workspace/sunfish"


def test_a_provider_tool_may_have_a_hook_for_a_plain_mapping():
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
