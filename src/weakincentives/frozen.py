"""`FrozenDataclass`: the decorator of immutable dataclasses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def FrozenDataclass(*, slots: bool = False, kw_only: bool = False) -> Callable[[type[T]], type[T]]:  # noqa: N802 - named as a class, like the type that it makes
    """`@FrozenDataclass()` is `@dataclass(frozen=True)`.

    >>> @FrozenDataclass()
    ... class Point:
    ...     x: int = 0
    >>> Point(3)
    Point(x=3)
    """
    return dataclass(frozen=True, slots=slots, kw_only=kw_only)
