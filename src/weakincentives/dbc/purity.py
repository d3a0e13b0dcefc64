"""`pure`: a function that leaves its arguments as they were."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Hashable
from functools import wraps
from types import FunctionType, ModuleType
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast

from weakincentives.dbc.conditions import bind_arguments, reject_coroutines_and_generators
from weakincentives.dbc.switch import is_checking
from weakincentives.errors import ContractError

P = ParamSpec("P")
R = TypeVar("R")

Fingerprint: TypeAlias = Hashable

_SCALARS = (str, bytes, int, float, complex, bool, type(None))
_OPAQUE = (type, FunctionType, ModuleType)


def pure(function: Callable[P, R]) -> Callable[P, R]:
    """The arguments, and everything that can be reached through them, are not changed by a call.

    >>> from weakincentives.dbc import checking
    >>> with checking():
    ...     @pure
    ...     def last(items: list[int]) -> int:
    ...         return items.pop()
    >>> last([1, 2, 3])
    Traceback (most recent call last):
    weakincentives.errors.ContractError: last is @pure but changed its argument `items`
    """
    if not is_checking():
        return function
    reject_coroutines_and_generators("pure", function)
    signature = inspect.signature(function)

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        values = bind_arguments(signature, *args, **kwargs)
        before = {name: fingerprint(value) for name, value in values.items()}
        result = function(*args, **kwargs)
        changed = [name for name, value in values.items() if fingerprint(value) != before[name]]
        if changed:
            names = ", ".join(f"`{name}`" for name in changed)
            raise ContractError(f"{function.__qualname__} is @pure but changed its argument {names}")
        return result

    return checked


def fingerprint(value: object) -> Fingerprint:
    """Something that is equal to a later fingerprint of the same value exactly when nothing in it has changed.

    It looks and never copies, so a lock or an open connection among the arguments is no problem. What it cannot
    look into, such as an object written in C, counts as unchanged as long as it is the same object.
    """
    return _fingerprint(value, {})


class _Identity:
    """An object that is equal only to itself. Holding it keeps its address from being given to another one."""

    __slots__ = ("_object",)

    def __init__(self, held: object) -> None:
        self._object = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self._object is other._object

    def __hash__(self) -> int:
        return id(self._object)


def _fingerprint(value: object, seen: dict[int, int]) -> Fingerprint:
    if isinstance(value, _SCALARS) and type(value) in _SCALARS:
        return type(value), value
    if isinstance(value, _OPAQUE):
        return _Identity(value)
    if id(value) in seen:
        return "seen", seen[id(value)]
    seen[id(value)] = len(seen)
    return _Identity(value), _content(value, seen), _state(value, seen)


def _content(value: object, seen: dict[int, int]) -> Fingerprint:
    """What a container of the standard kinds, or one derived from them, holds."""
    if isinstance(value, dict):
        entries = cast("dict[object, object]", value)
        return tuple((_fingerprint(key, seen), _fingerprint(item, seen)) for key, item in entries.items())
    if isinstance(value, list | tuple | deque):
        items = cast("list[object]", value)
        return tuple(_fingerprint(item, seen) for item in items)
    if isinstance(value, set | frozenset):
        members = cast("set[object]", value)
        return frozenset(_fingerprint(member, seen) for member in members)
    return bytes(value) if isinstance(value, bytearray) else None


def _state(value: object, seen: dict[int, int]) -> Fingerprint:
    """What an instance keeps in `__dict__` and `__slots__`."""
    # The one of `object`: a class's own __getstate__ may leave out what it does not want pickled, or do work.
    state: Any = object.__getstate__(value)
    parts = cast("tuple[dict[str, object] | None, ...]", state if isinstance(state, tuple) else (state,))
    return tuple((name, _fingerprint(item, seen)) for part in parts if part for name, item in part.items())
