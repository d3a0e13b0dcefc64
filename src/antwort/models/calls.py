"""Assembles streamed tool calls of chat completions from fragments, in every form that servers send. Pure.

Most servers send `index`, the name once, and an id. Others omit the index, the id or both, repeat the name in every
fragment, send each call in one fragment, or give all of them index 0. A call is emitted with its first arguments,
because until then its name may be incomplete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct

from antwort.engine.ports import CallPiece


class FunctionDelta(Struct):
    """A part of a function's name and arguments; a few servers send the arguments as an object."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class CallDelta(Struct):
    """A fragment of a tool call."""

    index: int | None = None
    id: str | int | None = None
    function: FunctionDelta | None = None


class CallWithoutName(Exception):
    """A call ended without a function name."""


@dataclass
class _PartialCall:
    """A call in progress. `index` is the emitted index, -1 until the call is emitted."""

    upstream_id: str = ""
    name: str = ""
    index: int = -1
    pending: list[str] = field(default_factory=list[str])
    sent: list[str] = field(default_factory=list[str])

    @property
    def is_complete(self) -> bool:
        """Whether the arguments are a complete JSON document, so that no fragment can follow."""
        fragments = [*self.sent, *self.pending]
        last = next((part for part in reversed(fragments) if not part.isspace()), "")
        if not last.rstrip().endswith("}"):  # cheap test first: most fragments end otherwise
            return False
        try:
            msgspec.json.decode("".join(fragments))
        except (msgspec.DecodeError, RecursionError):
            return False
        return True


class CallAssembler:
    """Converts fragments to pieces; calls are numbered from 0."""

    def __init__(self, *, used_ids: Iterable[str], new_call_id: Callable[[], str]) -> None:
        self._used_ids = set(used_ids)  # of the history: some servers number their ids from zero in every answer
        self._new_call_id = new_call_id
        self._calls: list[_PartialCall] = []
        self._by_index: dict[int, _PartialCall] = {}
        self._next_index = 0

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, delta: CallDelta) -> Iterator[CallPiece]:
        """The pieces that this fragment completes."""
        function = delta.function or FunctionDelta()
        name, arguments = function.name or "", _arguments_text(function.arguments)
        upstream_id = "" if delta.id is None else str(delta.id)
        call = self._find(delta.index, upstream_id, name, arguments)
        if call is None:
            yield from self._emit_pending()
            call = self._start_call(delta.index)
        call.upstream_id = call.upstream_id or upstream_id
        if call.index < 0 and name:
            call.name = _extend_name(call.name, name)
        if arguments:
            call.pending.append(arguments)
            yield from self._emit(call)

    def close(self) -> Iterator[CallPiece]:
        """The calls that have no arguments, at the end of the stream."""
        yield from self._emit_pending()
        if any(call.index < 0 and call.pending for call in self._calls):
            raise CallWithoutName

    def _find(self, index: int | None, upstream_id: str, name: str, arguments: str) -> _PartialCall | None:
        """The call that a fragment continues; None if it starts one."""
        if index is None and upstream_id:
            same = next((call for call in reversed(self._calls) if call.upstream_id == upstream_id), None)
            last = self._calls[-1] if self._calls else None
            return same or (last if last and not last.upstream_id and not name else None)
        call = self._by_index.get(index) if index is not None else (self._calls[-1] if self._calls else None)
        if call is None or not name:
            return call
        if upstream_id and call.upstream_id:
            return call if upstream_id == call.upstream_id else None
        if index is None and call.name and name != call.name:
            return None
        return None if arguments and call.is_complete else call

    def _start_call(self, index: int | None) -> _PartialCall:
        call = _PartialCall()
        self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        return call

    def _emit_pending(self) -> Iterator[CallPiece]:
        for call in self._calls:
            if call.index < 0 and call.name:
                yield from self._emit(call)

    def _emit(self, call: _PartialCall) -> Iterator[CallPiece]:
        if not call.name:
            return
        arguments = "".join(call.pending)
        call.sent += call.pending
        call.pending = []
        if call.index >= 0:
            yield CallPiece(call.index, arguments=arguments)
            return
        call.index, self._next_index = self._next_index, self._next_index + 1
        yield CallPiece(call.index, call.name, self._assign_id(call), arguments)

    def _assign_id(self, call: _PartialCall) -> str:
        is_usable = call.upstream_id and call.upstream_id not in self._used_ids
        call_id = call.upstream_id if is_usable else self._new_call_id()
        self._used_ids.add(call_id)
        return call_id


def _extend_name(known: str, name: str) -> str:
    """The name after a fragment that repeats it, repeats and lengthens it, or continues it."""
    if name == known:
        return known
    return name if name.startswith(known) else known + name


def _arguments_text(arguments: str | dict[str, Any] | None) -> str:
    if isinstance(arguments, dict):
        return msgspec.json.encode(arguments).decode()
    return arguments or ""
