"""Progressive disclosure: the tool `open_section`, with which a model opens a summarized section."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated

from weakincentives.prompt._types import SessionProtocol
from weakincentives.prompt.tool import Tool, ToolContext
from weakincentives.prompt.tool_result import ToolResult

OPEN_SECTION = "open_section"


@dataclass(frozen=True, slots=True)
class SectionOpened:
    """Event: the model opened a summarized section. It is stored in the session, so the section stays open there."""

    prompt_ns: str
    prompt_key: str
    path: str


@dataclass(frozen=True)
class OpenSectionParams:
    """Parameters of `open_section`."""

    path: Annotated[str, "The path of the section, as its heading shows it in parentheses."]


def _open_section(params: OpenSectionParams, *, context: ToolContext) -> ToolResult[None]:
    summarized = context.rendered_prompt.summarized
    if params.path not in summarized:
        return ToolResult.error(
            f"No summarized section {params.path!r}. Summarized sections: {', '.join(sorted(summarized))}."
        )
    context.session.dispatch(SectionOpened(context.prompt.ns, context.prompt.key, params.path))
    opened = context.prompt.render(session=context.session)
    return ToolResult(f"{opened.section_text(params.path)}\n\nThe tools of this section are now available.", None)


def opened_paths(ns: str, key: str, session: SessionProtocol | None) -> frozenset[str]:
    """The paths of the sections of a prompt that were opened in a session."""
    opened = session[SectionOpened].all() if session is not None else ()
    return frozenset(event.path for event in opened if (event.prompt_ns, event.prompt_key) == (ns, key))


@cache
def open_section_tool() -> Tool[OpenSectionParams, None]:
    """The tool that is added to every prompt with a summarized section."""
    return Tool[OpenSectionParams, None](
        name=OPEN_SECTION,
        description="Show the full text of a summarized section and enable its tools.",
        handler=_open_section,
        accepts_overrides=False,
    )
