"""A tool that the client runs, prepared for one response: each call of the model becomes an item for the client.

A call begins when the model has written all of it. So what reaches the client is complete and well-formed: the model
reads what is wrong with a broken call, and makes it again in the same response.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, TypeAlias, TypeVar

from msgspec import Struct, field

from antwort.engine.ports import (
    CallDefaults,
    CallRefused,
    FunctionSpec,
    HostedCall,
    Progress,
    TextAnnotator,
    ToolDefaults,
    ToolDone,
    WholeTextAnnotator,
)
from antwort.tools.client_run.arguments import InvalidArguments

T = TypeVar("T")

_MAX_INLINE: Final = 16_384
_MAX_DELTA: Final = 4096


class ItemOfCall(Struct, frozen=True):
    """A call on the wire: its item at the beginning and at the end, and the events between them."""

    begun: dict[str, Any]
    done: dict[str, Any]
    events: Sequence[Progress] = field(default_factory=list[Progress])


ReadCall: TypeAlias = Callable[[str, str], ItemOfCall]
"""Makes the item of a call from its id and its arguments; `InvalidArguments` if they are invalid."""


class PreparedClientTool(ToolDefaults):
    """A `PreparedTool` with one function."""

    reads_files = False
    is_client_run = True
    is_written_whole = True

    def __init__(self, spec: FunctionSpec, read_call: ReadCall) -> None:
        self.specs = (spec,)
        self._read_call = read_call

    async def open(self, name: str, call_id: str, arguments: str) -> HostedCall:
        del name
        try:
            item = await read_in_thread_if_long(arguments, lambda written: self._read_call(call_id, written))
        except InvalidArguments as error:
            raise CallRefused(f"Nothing was done: {error}.", is_broken=True) from error
        return ClientToolCall(item)

    def annotator(self) -> TextAnnotator:
        return WholeTextAnnotator()

    def lease(self) -> AbstractContextManager[object]:
        """Holds nothing."""
        return nullcontext()


class ClientToolCall(CallDefaults):
    """A call for the client, which runs it after the response."""

    def __init__(self, item: ItemOfCall) -> None:
        self._item = item

    @property
    def item(self) -> dict[str, Any]:
        return self._item.begun

    def started_events(self) -> Sequence[Progress]:
        return ()

    def write(self, delta: str) -> Sequence[Progress]:
        """The arguments were read when the call began."""
        del delta
        return ()

    async def run(self) -> AsyncGenerator[Progress | ToolDone, None]:
        for event in self._item.events:
            yield event
        yield ToolDone(self._item.done, "", awaits_client=True)

    def failed(self, reason: str) -> ToolDone:
        return ToolDone({**self._item.begun, "status": "incomplete"}, reason)


async def read_in_thread_if_long(arguments: str, read: Callable[[str], T]) -> T:
    """Read arguments; long ones in a thread, because they would block the event loop."""
    return read(arguments) if len(arguments) <= _MAX_INLINE else await asyncio.to_thread(read, arguments)


def deltas(text: str) -> Iterator[str]:
    """A text in the parts that events have."""
    return (text[start : start + _MAX_DELTA] for start in range(0, len(text), _MAX_DELTA))


def parameters(required: Sequence[str], **properties: dict[str, Any]) -> dict[str, Any]:
    """JSON schema of the parameters of a function."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
