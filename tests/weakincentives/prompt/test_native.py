from __future__ import annotations

from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import pytest

from weakincentives.prompt import MarkdownSection, NativeDeclaration, NativeTool, Prompt, ProviderTool, Section


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


def test_every_way_of_declaring_becomes_the_same_type():
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


def test_a_declaration_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        NATIVE.declaration().name = "other"  # pyright: ignore[reportAttributeAccessIssue] - the point of the test


def test_a_declaration_can_be_kept_in_a_set_whatever_its_config():
    declared = PROVIDED.declaration()

    assert {declared, PROVIDED.declaration()} == {declared}
    assert NativeDeclaration("a", "a", config=[1]) != NativeDeclaration("a", "a", config=[2])


def test_a_declaration_takes_the_slot_of_its_capability_unless_there_may_be_several():
    assert NativeDeclaration("web_search", "mine").slot == "web_search"
    assert NativeDeclaration("mcp", "docs", slot="mcp:docs").slot == "mcp:docs"


def test_the_providers_own_form_is_a_declaration_too():
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


def test_a_section_may_declare_in_the_providers_own_form():
    rendered = Prompt(ns="test", key="plain", sections=[Plain(title="Plain", key="plain")]).render()

    assert [(one.capability, one.origin) for one in rendered.native_tools] == [
        ("shell", "section 'plain'"),
        ("web_search", "section 'plain'"),
    ]
