"""One call of the web search: reads its arguments, searches or opens a page, and returns its item."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct, field

from antwort.api.ids import new_id
from antwort.engine.ports import CallDefaults, Progress, ToolDone
from antwort.tools.builtins.websearch.results import ShownResult
from antwort.tools.builtins.websearch.types import (
    BadSearchArguments,
    Search,
    SearchAction,
    action_item,
    empty_action,
    read_action,
)

_CALL: Final = "response.web_search_call"


class SearchOutcome(Struct, frozen=True, kw_only=True):
    """What came of an action."""

    action: SearchAction
    text: str
    """What the model reads."""
    results: Sequence[ShownResult] = field(default_factory=list[ShownResult])
    has_failed: bool = False
    requests: int = 0
    """Requests to the search engine."""


class SearchRunner(Protocol):
    """Performs actions. `PreparedWebSearch` implements it."""

    async def perform(self, action: SearchAction) -> SearchOutcome:
        """Perform an action. A failure is an outcome."""
        ...


class HostedSearchCall(CallDefaults):
    """A call in progress, of one of the functions."""

    def __init__(self, runner: SearchRunner, function: str) -> None:
        self._runner = runner
        self._function = function
        self._id = new_id("ws_")
        self._arguments: list[str] = []

    @property
    def item(self) -> dict[str, Any]:
        """Without an action: it is known when the arguments are complete."""
        return {"id": self._id, "type": "web_search_call", "status": "in_progress"}

    def started_events(self) -> Sequence[Progress]:
        return (Progress(f"{_CALL}.in_progress"),)

    def write(self, delta: str) -> Sequence[Progress]:
        self._arguments.append(delta)
        return ()

    async def run(self) -> AsyncGenerator[Progress | ToolDone, None]:
        try:
            action = self._action()
        except BadSearchArguments as error:
            yield self.failed(str(error))
            return
        yield Progress(f"{_CALL}.searching")
        outcome = await self._runner.perform(action)
        if not outcome.has_failed:
            yield Progress(f"{_CALL}.completed")
        yield self._done(outcome)

    def failed(self, reason: str) -> ToolDone:
        try:
            action = action_item(self._action())
        except BadSearchArguments:
            action = empty_action(self._function)
        return ToolDone({**self.item, "status": "failed", "action": action}, reason)

    def _action(self) -> SearchAction:
        return read_action(self._function, "".join(self._arguments))

    def _done(self, outcome: SearchOutcome) -> ToolDone:
        action = action_item(outcome.action)
        if isinstance(outcome.action, Search) and not outcome.has_failed:
            action["sources"] = [{"type": "url", "url": result.source.url} for result in outcome.results]
        item = {
            **self.item,
            "status": "failed" if outcome.has_failed else "completed",
            "action": action,
            "results": [result.as_item() for result in outcome.results],
        }
        if outcome.has_failed:
            del item["results"]
        return ToolDone(item, outcome.text, outcome.requests)
