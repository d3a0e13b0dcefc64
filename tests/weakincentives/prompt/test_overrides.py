from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.errors import ParseError, PromptValidationError
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.prompt import (
    MarkdownSection,
    NativeTool,
    OverrideStore,
    Prompt,
    PromptOverrides,
    PromptTemplate,
    SectionOverride,
    Tool,
    ToolContext,
    ToolOverride,
    ToolResult,
)


@dataclass
class Params:
    topic: str = "cats"


@dataclass
class Query:
    text: Annotated[str, "What to look for."]
    limit: int = 3


def look(params: Query, *, context: ToolContext) -> ToolResult[None]:
    """Look something up."""
    return ToolResult.ok(None)


def template(
    text: str = "About ${topic}.", description: str = "Look something up.", **changes: Any
) -> PromptTemplate[Any]:
    section = MarkdownSection[Params](
        title="Task",
        key="task",
        template=text,
        children=[MarkdownSection(title="Kid", key="kid", template="Kindly.")],
        tools=[
            Tool[Query, None](name="look", description=description, handler=look),
            NativeTool[Query, None](name="web_search", description="Search.", accepts_overrides=True),
            NativeTool[Query, None](name="file_search", description="Search."),
        ],
        **changes,
    )
    return PromptTemplate(ns="test", key="prompt", sections=[section])


def hashes(of: PromptTemplate[Any]) -> dict[str, str]:
    sections = {item.path: item.hash for item in of.descriptor.sections}
    return sections | {item.name: item.hash for item in of.descriptor.tools}


def overrides(
    of: PromptTemplate[Any], bodies: dict[str, str] | None = None, tools: dict[str, Any] | None = None
) -> PromptOverrides:
    known = hashes(of)
    return PromptOverrides(
        "test",
        "prompt",
        {path: SectionOverride(known.get(path, ""), body) for path, body in (bodies or {}).items()},
        {name: ToolOverride(known.get(name, ""), **words) for name, words in (tools or {}).items()},
    )


# ── Applied while the hash matches ────────────────────────────────────────────────────────────────────────────────────


def test_body_is_overridden_while_the_hash_matches():
    built = template()
    rendered = Prompt(
        built, overrides=overrides(built, {"task": "All about ${topic}!", "task.kid": "Sternly."})
    ).render()

    assert rendered.text == (
        "## 1. Task (task)\n\nAll about cats!\n\nTool `web_search`: Search.\n\nTool `file_search`: Search.\n\n"
        "### 1.1. Kid (task.kid)\n\nSternly."
    )
    assert rendered.descriptor.stale == ()
    assert Prompt(built).render().text.startswith("## 1. Task (task)\n\nAbout cats.")


def test_descriptions_of_a_tool_and_its_parameters_are_overridden():
    built = template()
    words = {"description": "Other words.", "param_descriptions": {"text": "Anything.", "limit": "How many."}}
    rendered = Prompt(built, overrides=overrides(built, tools={"look": words})).render()

    spec = rendered.tools[0].spec()

    assert spec.description == "Other words."
    assert spec.parameters["properties"]["text"]["description"] == "Anything."
    assert spec.parameters["properties"]["limit"]["description"] == "How many. Null means 3."


def test_override_of_parameter_descriptions_only():
    built = template()
    rendered = Prompt(built, overrides=overrides(built, tools={"look": {"param_descriptions": {"text": "X"}}})).render()

    assert rendered.tools[0].spec().description == "Look something up."
    assert rendered.tools[0].spec().parameters["properties"]["text"]["description"] == "X"


def test_native_tool_that_accepts_overrides():
    built = template()
    rendered = Prompt(built, overrides=overrides(built, tools={"web_search": {"description": "Rarely."}})).render()

    declared = {item.name: item for item in rendered.native_tools}

    assert declared["web_search"].tool is not None
    assert declared["web_search"].tool.description == "Rarely."
    assert declared["web_search"].origin == "section 'task'"


# ── Not applied ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "path_or_name, of_now, why",
    [
        ("task", template("About ${topic}!"), "section 'task' has changed since the override was written"),
        ("look", template(description="Look up."), "tool 'look' has changed since the override was written"),
        ("task", template(accepts_overrides=False), "section 'task' does not accept overrides"),
        ("file_search", template(), "tool 'file_search' does not accept overrides"),
        ("gone", template(), "section 'gone' does not exist"),
    ],
)
def test_stale_overrides_are_not_applied_and_have_a_reason(path_or_name, of_now, why, caplog):
    bodies = {path_or_name: "Other."} if "section" in why else {}
    tools = {path_or_name: {"description": "Other."}} if "tool" in why else {}
    given_overrides = overrides(template(), bodies, tools)

    with caplog.at_level(logging.WARNING):
        rendered = Prompt(of_now, overrides=given_overrides).render()

    assert rendered.descriptor.stale == (why,)
    assert f"override not applied: {why} (prompt test/prompt)" in caplog.messages
    assert rendered.text == Prompt(of_now).render().text
    assert rendered.tools == Prompt(of_now).render().tools


def test_matching_overrides_are_applied_beside_stale_ones():
    built = template()
    mixed = overrides(built, {"task": "New.", "gone": "Lost."})

    rendered = Prompt(built, overrides=mixed).render()

    assert rendered.text.startswith("## 1. Task (task)\n\nNew.")
    assert rendered.descriptor.stale == ("section 'gone' does not exist",)


def test_overrides_of_another_prompt_are_rejected():
    with pytest.raises(PromptValidationError, match="overrides for prompt test/other were applied to test/prompt"):
        Prompt(template(), overrides=PromptOverrides("test", "other")).render()


@pytest.mark.parametrize(
    "body, message",
    [("About ${colour}.", r"uses \$\{colour\}, which is not a field of Params"), ("$5", "invalid placeholder")],
)
def test_invalid_body_is_rejected(body, message):
    built = template()

    with pytest.raises(PromptValidationError, match=f"section 'task'.*{message}"):
        Prompt(built, overrides=overrides(built, {"task": body})).render()


def test_description_of_an_unknown_parameter_is_rejected():
    built = template()
    wrong = overrides(built, tools={"look": {"param_descriptions": {"colour": "Which?"}}})

    with pytest.raises(PromptValidationError, match="tool 'look': Query has no field 'colour' to describe"):
        Prompt(built, overrides=wrong).render()


# ── Hashes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_descriptor_has_hashes_of_sections_and_tools():
    built = template()

    assert [item.path for item in built.descriptor.sections] == ["task", "task.kid"]
    assert [item.name for item in built.descriptor.tools] == ["look", "web_search", "file_search"]
    assert hashes(built) == hashes(template())
    assert built.descriptor == template().descriptor


@given(st.text(), st.text())
def test_hash_changes_with_the_text(first, two):
    def hash_of(text: str) -> str:
        return hashes(template(text.replace("$", "$$")))["task"]

    assert (hash_of(first) == hash_of(two)) == (first == two)


# ── Files ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_json_round_trip():
    built = template()
    written = overrides(
        built, {"task": "New\n»text«"}, {"look": {"description": "X", "param_descriptions": {"text": "Y"}}}
    )

    assert PromptOverrides.from_json(written.to_json()) == written


def test_from_handwritten_json():
    text = json.dumps(
        {"ns": "test", "prompt_key": "prompt", "sections": {"task": {"expected_hash": "abc", "body": "New."}}}
    )

    assert PromptOverrides.from_json(text) == PromptOverrides(
        "test", "prompt", {"task": SectionOverride("abc", "New.")}
    )


def test_invalid_json_file_names_the_path():
    with pytest.raises(ParseError, match="missing required field `body`") as caught:
        PromptOverrides.from_json('{"ns": "a", "prompt_key": "b", "sections": {"task": {"expected_hash": "abc"}}}')

    assert "sections" in caught.value.path


def test_store_has_one_file_per_prompt():
    files = InMemoryFilesystem()
    store = OverrideStore(files)
    built = template()
    written = overrides(built, {"task": "New."})

    assert store.load("test", "prompt") is None
    store.save(written)
    store.save(PromptOverrides("test", "other"))

    assert store.load("test", "prompt") == written
    assert sorted(files.glob("**/*.json")) == ["test/other.json", "test/prompt.json"]
    assert Prompt(built, overrides=store.load("test", "prompt")).render().text.startswith("## 1. Task (task)\n\nNew.")


def test_save_replaces_the_file():
    store = OverrideStore(InMemoryFilesystem())
    store.save(overrides(template(), {"task": "Old."}))
    store.save(overrides(template(), {"task.kid": "New."}))

    loaded = store.load("test", "prompt")

    assert loaded is not None
    assert list(loaded.sections) == ["task.kid"]
