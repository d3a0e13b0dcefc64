from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.errors import PromptValidationError
from weakincentives.prompt import MarkdownSection, SectionVisibility, Tool, ToolContext, ToolResult


@dataclass
class Params:
    topic: str = "cats"
    numbers: list[int] = field(default_factory=list[int])


def nothing(params: None, *, context: ToolContext) -> ToolResult[None]:
    """Do nothing."""
    return ToolResult.ok(None)


def body(template: str, params: Params | None = None) -> str:
    section = MarkdownSection[Params](title="Task", key="task", template=template)
    return section.render(params or Params(), 0, "1")


@pytest.mark.parametrize(
    "template, expected",
    [
        ("Write about ${topic}.", "Write about cats."),
        ("Write about $topic.", "Write about cats."),
        ("${topic}, ${topic} and ${numbers}", "cats, cats and []"),
        ("It costs $$5, or $${topic}.", "It costs $5, or ${topic}."),
        ("No placeholder, {topic} or %s.", "No placeholder, {topic} or %s."),
        ("", ""),
    ],
)
def test_placeholders_are_replaced_by_fields_of_the_params(template, expected):
    assert body(template) == expected


def test_template_is_dedented_and_stripped():
    template = """
        First:

            - ${topic}
        Last.
    """

    assert body(template) == "First:\n\n    - cats\nLast."


@given(st.text())
def test_values_are_not_expanded(topic):
    assert body("[${topic}]", Params(topic)) == f"[{topic}]"
    assert body("[${topic}]", Params("${numbers} $$")) == "[${numbers} $$]"


@pytest.mark.parametrize("template", ["It costs $5.", "${}", "${topic", "$ alone", "100$", "${to pic}"])
def test_invalid_placeholder_is_rejected_on_construction(template):
    with pytest.raises(PromptValidationError, match=r"section 'task': invalid placeholder in the template"):
        body(template)


def test_placeholders():
    section = MarkdownSection[Params](title="T", key="t", template="$topic, ${numbers}, $$price")

    assert section.placeholders() == {"topic", "numbers"}


def test_accepts_all_arguments_of_section():
    tool = Tool.wrap(nothing)
    kid = MarkdownSection(title="Kid", key="kid", template="x")
    arguments: dict[str, Any] = {
        "title": "T",
        "key": "t",
        "default_params": Params("dogs"),
        "children": (kid,),
        "enabled": lambda: False,
        "accepts_overrides": False,
        "summary": "In short.",
        "visibility": SectionVisibility.SUMMARY,
    }
    section = MarkdownSection[Params](template="x", tools=[tool], **arguments)

    assert {name: getattr(section, name) for name in arguments} == arguments
    assert section.tools() == (tool,)


def test_with_text():
    section = MarkdownSection[Params](title="T", key="t", template="About ${topic}.")
    other = section.with_text("Nothing about $topic and ${numbers}.")

    assert section.text() == "About ${topic}."
    assert other.text() == "Nothing about $topic and ${numbers}."
    assert other.placeholders() == {"topic", "numbers"}
    assert other.render(Params(), 0, "1") == "Nothing about cats and []."
    assert section.render(Params(), 0, "1") == "About cats."


def test_clone_with_another_template_is_validated():
    section = MarkdownSection[Params](title="T", key="t", template="About ${topic}.")

    assert section.clone(template="$numbers").render(Params(), 0, "1") == "[]"
    with pytest.raises(PromptValidationError, match="invalid placeholder"):
        section.clone(template="$")


class Greeting(MarkdownSection[Params]):
    """A constructor and a clone without a `template` argument."""

    def __init__(self, *, default_params: Params | None = None) -> None:
        super().__init__(title="Greeting", key="greeting", template="Hello ${topic}.", default_params=default_params)

    def clone(self, **kwargs: Any) -> Greeting:
        return Greeting(**{"default_params": self.default_params, **kwargs})


def test_with_text_of_a_subclass_that_overrides_clone():
    section = Greeting(default_params=Params("dogs"))

    assert section.with_text("Bye ${topic}.").render(Params(), 0, "1") == "Bye cats."
    assert section.clone(default_params=Params()).default_params == Params()
