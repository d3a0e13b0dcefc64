"""Slices: the items of one type in a session, and what a reducer may do with them.

Append and snapshot are O(1). Slices that grew from one another share a buffer:
each sees its first `length` items, and only whoever stands at the end may append
in place. One that was rolled back copies its part on its next append.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from weakincentives.dbc import require

T = TypeVar("T")
E = TypeVar("E")


class SliceView(Generic[T]):
    """An immutable run of items. Cheap to keep: it is a buffer and a length."""

    __slots__ = ("_buffer", "_length", "_tuple")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._share(list(items))

    def _share(self, buffer: list[T]) -> None:
        self._buffer = buffer
        self._length = len(buffer)
        self._tuple: tuple[T, ...] | None = None

    def all(self) -> tuple[T, ...]:
        """Every item, oldest first."""
        if self._tuple is None:
            self._tuple = tuple(self._buffer[: self._length])
        return self._tuple

    def latest(self) -> T | None:
        """The newest item."""
        return self._buffer[self._length - 1] if self._length else None

    def where(self, predicate: Callable[[T], bool], /) -> tuple[T, ...]:
        """The items that fit."""
        return tuple(item for item in self if predicate(item))

    @require(lambda self, start: 0 <= start <= len(self), "start is a position in the slice, or its end")
    def since(self, start: int) -> tuple[T, ...]:
        """The items from position `start` on."""
        return tuple(self._buffer[start : self._length])

    def appended(self, item: T) -> SliceView[T]:
        """These items and one more."""
        buffer = self._buffer
        if len(buffer) != self._length:  # somebody else has gone on from here
            buffer = buffer[: self._length]
        buffer.append(item)
        grown: SliceView[T] = SliceView.__new__(type(self))
        grown._share(buffer)
        return grown

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        for at in range(self._length):
            yield self._buffer[at]

    def __repr__(self) -> str:
        return f"SliceView({self._length} items)"


@dataclass(frozen=True, slots=True)
class Append:
    """Add one item."""

    item: Any


@dataclass(frozen=True, slots=True)
class Replace:
    """Put these in place of everything."""

    items: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Clear:
    """Remove everything."""


SliceOp: TypeAlias = Append | Replace | Clear | None
"""What a reducer answers; None leaves the slice as it is."""

Reducer: TypeAlias = Callable[[SliceView[T], E], SliceOp]
"""`(slice, event) -> what to do with it`. Pure: it reads the view and returns an operation."""


def apply(view: SliceView[Any], operation: SliceOp) -> SliceView[Any]:
    """The slice after an operation."""
    match operation:
        case None:
            return view
        case Append(item):
            return view.appended(item)
        case Replace(items):
            return SliceView(items)
        case Clear():
            return SliceView()


def append_event(view: SliceView[T], event: T) -> SliceOp:
    """Keep every event: what a slice does when nobody has registered anything for it."""
    _ = view
    return Append(event)


def replace_latest(view: SliceView[T], event: T) -> SliceOp:
    """Keep only the newest event."""
    _ = view
    return Replace((event,))


def upsert_by(key: Callable[[T], object]) -> Reducer[T, T]:
    """Keep the newest event for each key, in the order of first arrival."""

    def reducer(view: SliceView[T], event: T) -> SliceOp:
        wanted = key(event)
        if not any(key(item) == wanted for item in view):
            return Append(event)
        return Replace(tuple(event if key(item) == wanted else item for item in view))

    return reducer
