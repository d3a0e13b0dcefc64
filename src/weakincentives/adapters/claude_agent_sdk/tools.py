"""The tools of the prompt for the CLI: their declarations, and the ids of their calls."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from weakincentives.adapters.claude_agent_sdk.messages import tool_name
from weakincentives.prompt import SessionProtocol
from weakincentives.prompt.disclosure import OPEN_SECTION, SectionOpened

if TYPE_CHECKING:
    from weakincentives.adapters.core import Evaluation

MAX_RESULT_CHARACTERS = 100_000


@dataclass(frozen=True)
class ToolDeclaration:
    """A tool of the prompt, as it is declared to the CLI."""

    name: str
    description: str
    schema: dict[str, Any]


def declared_tools(evaluation: Evaluation) -> list[ToolDeclaration]:
    """The tools of the prompt, and those of its summarized sections.

    The CLI lists the tools once. Until the model opens the section of a tool, a call of it is answered with an error.
    """
    rendered = evaluation.rendered
    known = {tool.name for tool in rendered.tools}
    later = ()
    if rendered.summarized:
        opened = evaluation.prompt.render(session=cast("SessionProtocol", _AllOpened(evaluation)))
        later = tuple(tool for tool in opened.tools if tool.name not in known)
    declared: list[ToolDeclaration] = []
    for tool in (*rendered.tools, *later):
        spec = tool.spec()
        note = "" if tool.name in known else f"\n\nAvailable after its section was opened with `{OPEN_SECTION}`."
        declared.append(ToolDeclaration(spec.name, spec.description + note, spec.parameters))
    return declared


class _AllOpened:
    """The session of an evaluation, as if all sections of its prompt had been opened."""

    def __init__(self, evaluation: Evaluation) -> None:
        prompt = evaluation.prompt
        self._session: SessionProtocol = evaluation.session
        self._opened = tuple(SectionOpened(prompt.ns, prompt.key, node.path) for node in prompt.template.nodes)

    def __getitem__(self, item_type: type[Any]) -> Any:  # noqa: ANN401 - as of a session
        return _Opened(self._opened) if item_type is SectionOpened else self._session[item_type]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of a session
        return getattr(self._session, name)


class _Opened:
    def __init__(self, events: tuple[SectionOpened, ...]) -> None:
        self._events = events

    def all(self) -> tuple[SectionOpened, ...]:
        return self._events


class CallIds:
    """The ids of calls that are about to run: the handler of an MCP tool gets name and arguments only."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], deque[str]] = defaultdict(deque)

    def expect(self, name: str, arguments: Mapping[str, Any], call_id: str) -> None:
        """A call with this id will run."""
        self._waiting[_key(name, arguments)].append(call_id)

    def take(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        """The id of the oldest expected call with this name and these arguments."""
        waiting = self._waiting.get(_key(name, arguments))
        return waiting.popleft() if waiting else None


def _key(name: str, arguments: Mapping[str, Any]) -> tuple[str, str]:
    return tool_name(name), json.dumps(arguments, sort_keys=True)


def shorten(text: str) -> str:
    """The head and the tail of a text that is too long: the CLI would show the model a short preview instead."""
    if len(text) <= MAX_RESULT_CHARACTERS:
        return text
    half = MAX_RESULT_CHARACTERS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"
