from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from weakincentives.prompt import (
    MarkdownSection,
    NativeTool,
    Prompt,
    Section,
    SectionOpened,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.prompt.disclosure import OPEN_SECTION, OpenSectionParams, open_section_tool
from weakincentives.runtime import Session


@dataclass
class Query:
    text: str


def look(params: Query, *, context: ToolContext) -> ToolResult[None]:
    """Look something up."""
    return ToolResult.ok(None)


def plain(key: str, *children: Section[Any], **changes: Any) -> MarkdownSection[Any]:
    return MarkdownSection(
        **{"title": key.title(), "key": key, "template": f"All of {key}.", "children": children, **changes}
    )


def summarized(key: str, *children: Section[Any], **changes: Any) -> MarkdownSection[Any]:
    return plain(key, *children, summary=f"{key} in short.", visibility=SectionVisibility.SUMMARY, **changes)


def prompt(*sections: Section[Any], key: str = "prompt") -> Prompt[Any]:
    return Prompt(ns="test", key=key, sections=sections)


def call_open_section(path: str, of: Prompt[Any], session: Session) -> ToolResult[None]:
    """The result of calling `open_section`."""
    rendered = of.render(session=session)
    context = ToolContext(prompt=of, rendered_prompt=rendered, adapter=None, session=session)
    tool = rendered.find_tool(OPEN_SECTION)
    assert tool is not None
    assert tool.handler is not None
    return tool.handler(OpenSectionParams(path), context=context)


def test_summary_hides_body_children_and_tools():
    built = prompt(
        plain("task"),
        summarized(
            "manual",
            plain("chapter", tools=[Tool.wrap(look)]),
            tools=[NativeTool[Query, None](name="web_search", description="Search.")],
        ),
    )
    rendered = built.render()

    assert rendered.text == (
        "## 1. Task (task)\n\nAll of task.\n\n"
        "## 2. Manual (manual)\n\nmanual in short.\n\n"
        "(Summary only. Call `open_section` with path `manual` for the rest.)"
    )
    assert [tool.name for tool in rendered.tools] == ["open_section"]
    assert rendered.native_tools == ()
    assert rendered.summarized == {"manual"}


def test_no_open_section_tool_without_summarized_sections():
    assert prompt(plain("task", summary="Not shown.")).render().tools == ()
    assert prompt(plain("off", summarized("manual"), enabled=lambda: False)).render().tools == ()


def test_open_section_returns_the_text_and_enables_the_tools():
    session = Session()
    built = prompt(summarized("manual", plain("chapter"), tools=[Tool.wrap(look)]), plain("task"))

    result = call_open_section("manual", built, session)

    assert result.success is True
    assert result.render() == (
        "## 1. Manual (manual)\n\nAll of manual.\n\n### 1.1. Chapter (manual.chapter)\n\nAll of chapter.\n\n"
        "The tools of this section are now available."
    )
    after = built.render(session=session)
    assert [tool.name for tool in after.tools] == ["look"]
    assert after.summarized == frozenset()
    assert "All of manual." in after.text


def test_opened_section_is_open_only_in_its_session():
    session = Session()
    built = prompt(summarized("manual"))
    call_open_section("manual", built, session)

    assert "All of manual." in built.render(session=session).text
    assert "All of manual." in prompt(summarized("manual")).render(session=session).text
    assert "All of manual." not in built.render(session=Session()).text
    assert "All of manual." not in built.render().text
    assert session[SectionOpened].all() == (SectionOpened("test", "prompt", "manual"),)


def test_opened_section_is_specific_to_its_prompt():
    session = Session()
    call_open_section("manual", prompt(summarized("manual")), session)

    assert "All of manual." not in prompt(summarized("manual"), key="other").render(session=session).text


def test_nested_summarized_sections_are_opened_one_by_one():
    session = Session()
    built = prompt(summarized("manual", summarized("chapter", plain("page"), tools=[Tool.wrap(look)])))

    assert built.render(session=session).summarized == {"manual"}
    first = call_open_section("manual", built, session)
    assert "chapter in short." in first.message
    assert "All of chapter." not in first.message
    assert built.render(session=session).summarized == {"manual.chapter"}
    assert [tool.name for tool in built.render(session=session).tools] == ["open_section"]

    second = call_open_section("manual.chapter", built, session)
    assert "All of chapter." in second.message
    assert "All of page." in second.message
    assert [tool.name for tool in built.render(session=session).tools] == ["look"]


def test_open_section_returns_only_that_section():
    built = prompt(summarized("manual"), plain("manual.appendix"))

    assert "appendix" not in call_open_section("manual", built, Session()).message


@pytest.mark.parametrize("path", ["nothing", "task", "manual.chapter", "", "Manual"])
def test_open_section_with_another_path_lists_the_summarized_sections(path):
    session = Session()
    built = prompt(plain("task"), summarized("manual", summarized("chapter")), summarized("atlas"))

    result = call_open_section(path, built, session)

    assert result.success is False
    assert result.message == f"No summarized section {path!r}. Summarized sections: atlas, manual."
    assert session[SectionOpened].all() == ()


def test_path_parameter_has_a_description():
    spec = open_section_tool().spec()

    assert spec.strict is True
    assert spec.parameters["properties"]["path"]["description"].startswith("The path of the section")
    assert open_section_tool().accepts_overrides is False
