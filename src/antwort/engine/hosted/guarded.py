"""Guard around the code of tool providers: an exception becomes a failed call that the model reads about.

The driver calls prepared tools and their calls only through this module, so that a provider
that raises ends neither the response nor its stream.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, cast

from antwort.api.events import ToolProgress
from antwort.api.ids import Prefix, new_id
from antwort.api.items import Annotation, Raw
from antwort.api.tools import tool_family
from antwort.engine.ports import (
    CallRefused,
    FunctionSpec,
    HostedCall,
    NextItem,
    OpeningItem,
    PreparedTool,
    Progress,
    TextAnnotator,
    ToolDone,
    WholeCall,
)

_logger = logging.getLogger(__name__)

_NOT_STARTED = "The tool could not be started. Answer without it, or try again."
_FAILED = "The tool failed. Try another way, or answer without it."
_NO_RESULT = "The tool ended without a result."

_ID_PREFIXES: dict[str, Prefix] = {
    "code_interpreter": "ci_",
    "file_search": "fs_",
    "web_search": "ws_",
    "shell": "sh_",
    "local_shell": "lsh_",
    "apply_patch": "apc_",
    "computer": "cu_",
    "mcp": "mcp_",
}


@contextmanager
def guard(tool_type: str, action: str) -> Generator[None]:
    """Log and suppress an exception of a provider; the caller continues behind the `with` block."""
    try:
        yield
    except Exception:  # code of a provider, which may raise anything
        _logger.exception("tool %s could not %s", tool_type, action)


class HostedTool(NamedTuple):
    """A prepared tool. Its properties are provider code, so they are read once, when errors are handled."""

    type: str
    prepared: PreparedTool
    specs: tuple[FunctionSpec, ...]
    reads_files: bool = False
    is_client_run: bool = False
    is_written_whole: bool = False
    begins_at: re.Pattern[str] | None = None
    """How the response shows the declaration, if not as it is."""


class Opening(NamedTuple):
    """What a response begins with before the model is asked."""

    items: Sequence[OpeningItem] = ()
    calls: Sequence[WholeCall] = ()


class RefusedCall(NamedTuple):
    """A call that its tool has refused: why, and whether its arguments are malformed."""

    reason: str
    is_broken: bool


class HostedTools:
    """The prepared tools of one response, by their index in `tools`."""

    def __init__(self, tools: Mapping[int, HostedTool]) -> None:
        self._tools = tools

    def opening(self) -> Opening:
        """What the tools have the response begin with."""
        opening_items: list[OpeningItem] = []
        calls: list[WholeCall] = []
        for tool_type, tool, *_ in self._tools.values():
            with guard(tool_type, "open a response"):
                for opened in tool.opening_items():
                    _check_item(opened.begun)
                    _check_item(opened.done)
                    opening_items.append(opened)
                calls += tool.opening_calls()
        return Opening(opening_items, calls)

    def shown_declarations(self) -> dict[int, Raw]:
        """The declarations that the response shows otherwise, by the index of the tool."""
        shown: dict[int, Raw] = {}
        for index, (tool_type, tool, *_) in self._tools.items():
            with guard(tool_type, "show its declaration"):
                if (declaration := tool.shown_declaration()) is not None:
                    shown[index] = declaration
        return shown

    async def open(self, tool_index: int, call: WholeCall) -> GuardedCall | RefusedCall:
        """Begin a call; or the refusal of the tool. One that cannot begin has an item all the same, and fails."""
        tool_type, tool, *_ = self._tools[tool_index]
        with guard(tool_type, "begin a call"):
            try:
                opened = await tool.open(call.name, call.call_id, call.arguments)
            except CallRefused as refused:
                return RefusedCall(refused.reason, refused.is_broken)
            item = {**opened.item}
            _check_item(item)
            return GuardedCall(tool_type, item, opened)
        return self.not_opened(tool_index)

    def not_opened(self, tool_index: int) -> GuardedCall:
        """A call that could not begin: it has an item, and fails."""
        tool_type = self._tools[tool_index].type
        family = tool_family(tool_type)
        identifier = new_id(_ID_PREFIXES.get(family, "fc_"))
        item = {"id": identifier, "type": f"{family}_call", "status": "in_progress"}
        return GuardedCall(tool_type, item, None, error=_NOT_STARTED)

    def annotator(self) -> GuardedAnnotator:
        """Finds the citations of all tools in one text of the model."""
        annotators: list[tuple[str, TextAnnotator]] = []
        for tool_type, tool, *_ in self._tools.values():
            with guard(tool_type, "annotate a text"):
                annotators.append((tool_type, tool.annotator()))
        return GuardedAnnotator(annotators)

    @contextmanager
    def lease(self) -> Generator[None]:
        """Hold the lease of every tool."""
        leases: list[tuple[str, ExitStack]] = []
        try:
            for tool_type, tool, *_ in self._tools.values():
                leases.append((tool_type, ExitStack()))
                with guard(tool_type, "take its lease"):
                    leases[-1][1].enter_context(tool.lease())
            yield
        finally:
            for tool_type, lease in reversed(leases):
                with guard(tool_type, "release its lease"):
                    lease.close()


class GuardedAnnotator:
    """The `TextAnnotator`s of several tools under a guard: one that raised is not asked again."""

    def __init__(self, annotators: Sequence[tuple[str, TextAnnotator]]) -> None:
        self._annotators = list(annotators)

    def feed(self, delta: str) -> list[Annotation]:
        return self._collect(lambda annotator: annotator.feed(delta))

    def finish(self, text: str) -> list[Annotation]:
        return self._collect(lambda annotator: annotator.finish(text))

    def _collect(self, find: Callable[[TextAnnotator], Sequence[Annotation]]) -> list[Annotation]:
        annotations: list[Annotation] = []
        working: list[tuple[str, TextAnnotator]] = []
        for tool_type, annotator in self._annotators:
            with guard(tool_type, "annotate a text"):
                annotations += tuple(find(annotator))
                working.append((tool_type, annotator))
        if len(working) < len(self._annotators):
            self._annotators = working
        return annotations


class GuardedCall:
    """A hosted call under a guard: one that raised in any method has failed, and is not run."""

    def __init__(self, tool_type: str, item: Raw, call: HostedCall | None, error: str = "") -> None:
        self.item = item
        """The item that is open now."""
        self.output_index = -1
        """Of that item. The turn sets it when it begins the item."""
        self.early: list[Progress] = []
        """The events of a call that was written before its item begins: those of its start, and of its arguments."""
        self._produced = item
        """The item that the last step produced belongs to: `item`, or one that is not delivered yet."""
        self._tool_type = tool_type
        self._call = call
        self._error = error
        """Why the call has failed, for the model; empty while nothing has."""
        self._steps: AsyncIterator[Progress | NextItem | ToolDone] | None = None
        self._unread_ends: deque[Raw] = deque()
        """How the item that is open, and those behind it, would end, of a call that has produced further items."""
        self._end: Raw = item

    @property
    def has_run(self) -> bool:
        """Whether the run has begun."""
        return self._steps is not None

    @property
    def serial_key(self) -> str | None:
        if self._call is not None and not self._error:
            with guard(self._tool_type, "find what a call shares"):
                return self._call.serial_key
        return None

    def write_early(self, arguments: str) -> None:
        """Take all of the arguments before the item begins."""
        self.early = [*self._start(), *(self._write(arguments) if arguments else ())]
        self._end = self._provider_end(_FAILED).item

    def early_events(self) -> list[ToolProgress]:
        return [self._event(step) for step in self.early]

    def started_events(self) -> list[ToolProgress]:
        return [self._event(step) for step in self._start()]

    def write(self, delta: str) -> list[ToolProgress]:
        return [self._event(step) for step in self._write(delta)]

    def _start(self) -> Sequence[Progress]:
        if self._call is not None:
            with guard(self._tool_type, "start a call"):
                return tuple(map(_checked, self._call.started_events()))
            self._error = _FAILED
        return ()

    def _write(self, delta: str) -> Sequence[Progress]:
        if self._call is not None and not self._error:
            with guard(self._tool_type, "read arguments"):
                return tuple(map(_checked, self._call.write(delta)))
            self._error = _FAILED
        return ()

    def deliver(self, step: Progress | NextItem | ToolDone) -> ToolProgress | NextItem | ToolDone:
        """The step as the turn gets it. Steps are delivered in order, at once or later."""
        if isinstance(step, NextItem):
            self.item = {**step.begun}
            self._unread_ends.popleft()
        return self._event(step) if isinstance(step, Progress) else step

    async def produce(self) -> Progress | NextItem | ToolDone:
        """Run the call up to its next event or item, or to its end."""
        if self._call is not None and not self._error:
            with guard(self._tool_type, "run a call"):
                if self._steps is None:
                    self._steps = self._call.run()
                async for step in self._steps:
                    if isinstance(step, ToolDone):
                        _check_item(step.item)
                        return step
                    if isinstance(step, NextItem):
                        _check_item(step.done)
                        _check_item(step.begun)
                        self._produced = {**step.begun}
                        self._unread_ends.append(self._end)
                        self._end = self._provider_end(_FAILED).item
                        return step
                    return _checked(step)
                self._error = _NO_RESULT
            self._error = self._error or _FAILED
        return self._provider_end(self._error)

    def broken_off(self) -> ToolDone:
        """The end of a call whose run raised `CancelledError` of its own."""
        _logger.error("tool %s cancelled a call of its own", self._tool_type)
        self._error = _FAILED
        return self._provider_end(_FAILED)

    def failed(self, reason: str) -> ToolDone:
        """The end of the open item, of a call that was not run to its end."""
        done = self._provider_end(reason)
        return ToolDone(self._unread_ends[0], done.text) if self._unread_ends else done

    def _provider_end(self, reason: str) -> ToolDone:
        """The end of the item that the last step produced."""
        if self._call is not None:
            with guard(self._tool_type, "report a failed call"):
                return self._call.failed(reason)
        return ToolDone({**self._produced, "status": "failed"}, reason)

    async def aclose(self) -> None:
        """Close the generator of the run now: it holds sandboxes and connections."""
        with guard(self._tool_type, "close a call"):
            if isinstance(steps := self._steps, AsyncGenerator):
                await cast("AsyncGenerator[object]", steps).aclose()

    def _event(self, step: Progress) -> ToolProgress:
        item_id = self.item["id"] if step.has_item_id else None
        return ToolProgress(type=step.type, item_id=item_id, output_index=self.output_index, fields=step.fields)


class NamedCall(NamedTuple):
    """A call that is to run. `name` and `call_id` are those that the model wrote."""

    call: GuardedCall
    name: str
    call_id: str


def _checked(step: Progress) -> Progress:
    if not isinstance(step, Progress):  # pyright: ignore[reportUnnecessaryIsInstance] - code of a provider
        raise TypeError("an event of a call is not `Progress`")
    return step


def _check_item(item: Mapping[str, Any]) -> None:
    if not all(isinstance(item.get(key), str) for key in ("id", "type")):
        raise TypeError("the item of a call needs an `id` and a `type`")
