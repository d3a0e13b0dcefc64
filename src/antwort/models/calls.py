"""Tool calls of a chat stream, put together from fragments in any of the shapes that servers send. Pure.

The good ones say which call a fragment belongs to (`index`), name it once and give it an
id. Others leave out the index, the id or both, repeat the name in every fragment, send
each call whole, or give all of them index 0. A call is passed on when its first
arguments come, because until then its name may still grow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct

from antwort.engine.ports import CallPiece


class FunctionDelta(Struct):
    """Some of a function's name and arguments; a few servers send the arguments as an object."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class CallDelta(Struct):
    """A fragment of a call."""

    index: int | None = None
    id: str | int | None = None
    function: FunctionDelta | None = None


class NamelessCall(Exception):
    """A call whose function nobody ever named."""


@dataclass
class _Call:
    """A call under way. `index` is ours, and -1 until the call is passed on."""

    theirs: str = ""
    name: str = ""
    index: int = -1
    held: list[str] = field(default_factory=list[str])
    sent: list[str] = field(default_factory=list[str])

    @property
    def whole(self) -> bool:
        """Whether the arguments are a JSON object already, so that nothing can follow."""
        fragments = [*self.sent, *self.held]
        last = next((part for part in reversed(fragments) if not part.isspace()), "")
        if not last.rstrip().endswith("}"):  # most fragments end elsewhere, and need no second look
            return False
        try:
            msgspec.json.decode("".join(fragments))
        except (msgspec.DecodeError, RecursionError):
            return False
        return True


class CallAssembler:
    """Feed it fragments; it gives pieces, each call under an index of its own, from 0 on."""

    def __init__(self, *, taken: Iterable[str], mint: Callable[[], str]) -> None:
        self._taken = set(taken)  # ids that the history knows: some servers count theirs from zero in every answer
        self._mint = mint
        self._calls: list[_Call] = []
        self._at: dict[int, _Call] = {}
        self._opened = 0

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, delta: CallDelta) -> Iterator[CallPiece]:
        """What this fragment lets us pass on."""
        function = delta.function or FunctionDelta()
        name, arguments = function.name or "", _as_text(function.arguments)
        theirs = "" if delta.id is None else str(delta.id)
        call = self._find(delta.index, theirs, name, arguments)
        if call is None:
            yield from self._open_held()
            call = self._begin(delta.index)
        call.theirs = call.theirs or theirs
        if call.index < 0 and name:
            call.name = _grown(call.name, name)
        if arguments:
            call.held.append(arguments)
            yield from self._pass_on(call)

    def close(self) -> Iterator[CallPiece]:
        """Calls without arguments, which waited for some until now."""
        yield from self._open_held()
        if any(call.index < 0 and call.held for call in self._calls):
            raise NamelessCall

    def _find(self, index: int | None, theirs: str, name: str, arguments: str) -> _Call | None:
        """The call that a fragment goes on with; None where it begins one."""
        if index is None and theirs:
            same = next((call for call in reversed(self._calls) if call.theirs == theirs), None)
            last = self._calls[-1] if self._calls else None
            return same or (last if last and not last.theirs and not name else None)
        call = self._at.get(index) if index is not None else (self._calls[-1] if self._calls else None)
        if call is None or not name:
            return call
        if theirs and call.theirs:
            return call if theirs == call.theirs else None
        if index is None and call.name and name != call.name:
            return None
        return None if arguments and call.whole else call

    def _begin(self, index: int | None) -> _Call:
        call = _Call()
        self._calls.append(call)
        if index is not None:
            self._at[index] = call
        return call

    def _open_held(self) -> Iterator[CallPiece]:
        for call in self._calls:
            if call.index < 0 and call.name:
                yield from self._pass_on(call)

    def _pass_on(self, call: _Call) -> Iterator[CallPiece]:
        if not call.name:
            return
        arguments = "".join(call.held)
        call.sent += call.held
        call.held = []
        if call.index >= 0:
            yield CallPiece(call.index, arguments=arguments)
            return
        call.index, self._opened = self._opened, self._opened + 1
        yield CallPiece(call.index, call.name, self._own_id(call), arguments)

    def _own_id(self, call: _Call) -> str:
        identifier = self._mint() if not call.theirs or call.theirs in self._taken else call.theirs
        self._taken.add(identifier)
        return identifier


def _grown(known: str, name: str) -> str:
    """A name that is repeated, repeated and longer, or goes on."""
    if name == known:
        return known
    return name if name.startswith(known) else known + name


def _as_text(arguments: str | dict[str, Any] | None) -> str:
    if isinstance(arguments, dict):
        return msgspec.json.encode(arguments).decode()
    return arguments or ""
