from __future__ import annotations

from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import pytest

from weakincentives.prompt import (
    MarkdownSection,
    NativeDeclaration,
    NativeTool,
    Prompt,
    PromptOverrides,
    PromptTemplate,
    ProviderTool,
    Section,
    SectionVisibility,
    ToolOverride,
)


@dataclass
class Query:
    text: str


@dataclass
class Answer:
    text: str


@dataclass
class Settings:
    sizes: list[int]


class Declaring(Section[Settings]):
    def render(self, params: object, depth: int, number: str) -> str:
        return ""

    def native_tools(self, params: object = None) -> tuple[NativeDeclaration, ...]:
        return (NativeDeclaration("file_search", "files", provider="openai", config=params),)


NATIVE = NativeTool[Query, Answer](name="web_search", description="Search the web.")
PROVIDED = ProviderTool[None, Answer, Settings](
    name="python", description="Run Python.", provider="openai", capability="code_interpreter", config=Settings([1])
)


def test_all_ways_of_declaring_give_native_declarations():
    sections = [
        Declaring(title="Files", key="files", default_params=Settings([2])),
        MarkdownSection(title="Task", key="task", template="Do it.", tools=[NATIVE, PROVIDED]),
    ]
    rendered = Prompt(ns="test", key="native", sections=sections).render()

    assert rendered.native_tools == (
        NativeDeclaration("file_search", "files", "openai", Settings([2]), None, "section 'files'"),
        NativeDeclaration("web_search", "web_search", None, None, NATIVE, "section 'task'"),
        NativeDeclaration("code_interpreter", "python", "openai", Settings([1]), PROVIDED, "section 'task'"),
    )
    assert rendered.tools == ()


def test_declaration_is_frozen():
    with pytest.raises(FrozenInstanceError):
        NATIVE.declaration().name = "other"  # pyright: ignore[reportAttributeAccessIssue] - the point of the test


def test_declaration_is_hashable_with_an_unhashable_config():
    declared = PROVIDED.declaration()

    assert {declared, PROVIDED.declaration()} == {declared}
    assert NativeDeclaration("a", "a", config=[1]) != NativeDeclaration("a", "a", config=[2])


def test_slot_defaults_to_the_capability():
    assert NativeDeclaration("web_search", "mine").slot == "web_search"
    assert NativeDeclaration("mcp", "docs", slot="mcp:docs").slot == "mcp:docs"


def test_of_converts_wire_declarations():
    declared = NativeDeclaration.of({"type": "web_search", "filters": {}})

    assert (declared.capability, declared.name) == ("web_search", "web_search")
    assert declared.config == {"type": "web_search", "filters": {}}
    assert NativeDeclaration.of({"type": "built_in", "name": "file_search"}).capability == "file_search"
    assert NativeDeclaration.of({}).capability == ""
    assert NativeDeclaration.of(declared) is declared


class Plain(Section[None]):
    def render(self, params: object, depth: int, number: str) -> str:
        return ""

    def native_tools(self, params: object = None) -> tuple[Mapping[str, Any], ...]:
        return ({"type": "built_in", "name": "shell"}, {"type": "web_search"})


def test_section_with_wire_declarations():
    rendered = Prompt(ns="test", key="plain", sections=[Plain(title="Plain", key="plain")]).render()

    assert [(one.capability, one.origin) for one in rendered.native_tools] == [
        ("shell", "section 'plain'"),
        ("web_search", "section 'plain'"),
    ]


def test_declaration_reads_like_a_mapping():
    declared = PROVIDED.declaration()

    assert isinstance(declared, Mapping)
    assert dict(declared) == {"type": "code_interpreter", "name": "python", "provider": "openai", "sizes": [1]}
    assert {**NATIVE.declaration()} == {"type": "web_search", "name": "web_search"}
    assert (declared["type"], declared.get("provider"), declared.get("filters", 0)) == ("code_interpreter", "openai", 0)
    assert ("sizes" in declared, "filters" in declared, len(declared), bool(declared)) == (True, False, 4, True)
    with pytest.raises(KeyError):
        declared["filters"]


def test_wire_declaration_reads_like_its_mapping():
    assert dict(NativeDeclaration.of({"type": "web_search", "filters": {}})) == {
        "type": "web_search",
        "name": "web_search",
        "filters": {},
    }
    assert dict(NativeDeclaration.of({"type": "built_in", "name": "shell"})) == {"type": "shell", "name": "shell"}


def test_descriptions_of_native_tools_are_text_of_their_section():
    section = MarkdownSection(title="Task", key="task", template="Do it.", tools=[NATIVE, PROVIDED])
    hidden = section.clone(summary="More.", visibility=SectionVisibility.SUMMARY)
    text = Prompt(ns="test", key="native", sections=[section]).render().text
    summarized = Prompt(ns="test", key="native", sections=[hidden]).render().text

    assert text == (
        "## 1. Task (task)\n\nDo it.\n\nTool `web_search`: Search the web.\n\nTool `code_interpreter`: Run Python."
    )
    assert "Tool" not in summarized


def test_section_with_a_native_tool_alone_has_its_description():
    section = MarkdownSection(title="Search", key="search", template="", tools=[NATIVE])

    assert Prompt(ns="n", key="k", sections=[section]).render().text == (
        "## 1. Search (search)\n\nTool `web_search`: Search the web."
    )


def test_overridden_description_is_the_one_in_the_text():
    tool = NativeTool[Query, Answer](name="web_search", description="Search the web.", accepts_overrides=True)
    template = PromptTemplate(
        ns="n", key="k", sections=[MarkdownSection(title="Task", key="task", template="Do it.", tools=[tool])]
    )
    (descriptor,) = template.descriptor.tools
    overrides = PromptOverrides("n", "k", tools={"web_search": ToolOverride(descriptor.hash, "Search the news.")})

    assert "Tool `web_search`: Search the news." in Prompt(template, overrides=overrides).render().text
