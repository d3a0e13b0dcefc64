"""The shapes that prompts ask of what they are handed. Protocols only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

T = TypeVar("T")


class SupportsDataclass(Protocol):
    """Any dataclass instance, frozen or not."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


@runtime_checkable
class ToolRenderableResult(Protocol):
    """A tool's value that says itself how a model should read it."""

    def render(self) -> str:
        """The text for the model."""
        ...


class SliceProtocol(Protocol[T]):
    """What a tool may do with one slice of a session."""

    def all(self) -> tuple[T, ...]:
        """Every item, oldest first."""
        ...

    def latest(self) -> T | None:
        """The newest item."""
        ...

    def where(self, predicate: Callable[[T], bool], /) -> tuple[T, ...]:
        """The items that fit."""
        ...

    def append(self, item: T, /) -> None:
        """Add one."""
        ...


class SessionProtocol(Protocol):
    """What prompts and tools ask of a session."""

    def __getitem__(self, item_type: type[T], /) -> SliceProtocol[T]: ...

    def dispatch(self, event: SupportsDataclass, /) -> object:
        """Tell the session, and whoever listens to it, what happened."""
        ...
