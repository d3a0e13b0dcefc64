"""Slices and reducers: immutable views of the items of one type, and the operations that reducers return.

Append and snapshot are O(1). Views that were derived from one another share a buffer: each uses its first `length`
items. A view that ends at the buffer's end appends in place; any other, such as one that was restored from a snapshot,
copies its items on the next append.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from weakincentives.dbc import require

T = TypeVar("T")
E = TypeVar("E")


class SliceView(Generic[T]):
    """An immutable sequence of items: a shared buffer and a length."""

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
        """The newest item; None if there is none."""
        return self._buffer[self._length - 1] if self._length else None

    def where(self, predicate: Callable[[T], bool], /) -> tuple[T, ...]:
        """The items that satisfy `predicate`."""
        return tuple(item for item in self if predicate(item))

    @require(lambda self, start: 0 <= start <= len(self), "start is an index of the slice, or its length")
    def since(self, start: int) -> tuple[T, ...]:
        """The items from index `start`."""
        return tuple(self._buffer[start : self._length])

    def appended(self, item: T) -> SliceView[T]:
        """A view of these items and one more."""
        buffer = self._buffer
        if len(buffer) != self._length:  # another view was appended to: copy
            buffer = buffer[: self._length]
        buffer.append(item)
        grown: SliceView[T] = SliceView.__new__(type(self))
        grown._share(buffer)
        return grown

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        for index in range(self._length):
            yield self._buffer[index]

    def __repr__(self) -> str:
        return f"SliceView({self._length} items)"


@dataclass(frozen=True, slots=True)
class Append:
    """Add one item."""

    item: Any


@dataclass(frozen=True, slots=True)
class Replace:
    """Replace all items."""

    items: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Clear:
    """Remove all items."""


SliceOp: TypeAlias = Append | Replace | Clear | None
"""What a reducer returns; None leaves the slice unchanged."""

Reducer: TypeAlias = Callable[[SliceView[T], E], SliceOp]
"""`(slice, event) -> operation`. Must be pure: it reads the view and returns an operation."""


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
    """Reducer: append every event. The default of a slice without reducers."""
    _ = view
    return Append(event)


def replace_latest(view: SliceView[T], event: T) -> SliceOp:
    """Reducer: keep only the newest event."""
    _ = view
    return Replace((event,))


def upsert_by(key: Callable[[T], object]) -> Reducer[T, T]:
    """Reducer: keep the newest event for each key, in the order in which the keys first occurred."""

    def reducer(view: SliceView[T], event: T) -> SliceOp:
        event_key = key(event)
        if not any(key(item) == event_key for item in view):
            return Append(event)
        return Replace(tuple(event if key(item) == event_key else item for item in view))

    return reducer
