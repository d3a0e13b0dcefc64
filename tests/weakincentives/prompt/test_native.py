from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass

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
