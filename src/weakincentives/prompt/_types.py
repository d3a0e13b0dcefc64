"""Protocols for the arguments of prompts and tools: dataclasses, sessions, renderable results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

T = TypeVar("T")


class SupportsDataclass(Protocol):
    """Any dataclass instance, frozen or not."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


@runtime_checkable
class ToolRenderableResult(Protocol):
    """A tool result value that renders itself to text for the model."""

    def render(self) -> str:
        """The text for the model."""
        ...


class SliceProtocol(Protocol[T]):
    """The operations on a slice that tools may use."""

    def all(self) -> tuple[T, ...]:
        """Every item, oldest first."""
        ...

    def latest(self) -> T | None:
        """The newest item; None if there is none."""
        ...

    def where(self, predicate: Callable[[T], bool], /) -> tuple[T, ...]:
        """The items that satisfy `predicate`."""
        ...

    def append(self, item: T, /) -> None:
        """Add one item."""
        ...


class SessionProtocol(Protocol):
    """The operations on a session that prompts and tools use."""

    def __getitem__(self, item_type: type[T], /) -> SliceProtocol[T]: ...

    def dispatch(self, event: SupportsDataclass, /) -> object:
        """Store an event and notify the subscribers."""
        ...
