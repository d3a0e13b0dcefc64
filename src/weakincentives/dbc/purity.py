"""Purity checks: `pure` verifies that a call does not change its arguments."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Hashable
from functools import wraps
from types import FunctionType, ModuleType
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast, get_origin

from weakincentives.dbc.conditions import bind_arguments, is_enabled, reject_coroutines_and_generators
from weakincentives.errors import ContractError

P = ParamSpec("P")
R = TypeVar("R")

Fingerprint: TypeAlias = Hashable

_SCALARS = (str, bytes, int, float, complex, bool, type(None))
_OPAQUE = (type, FunctionType, ModuleType)


def pure(function: Callable[P, R]) -> Callable[P, R]:
    """A call must not change its arguments, nor anything that is reachable through them.

    >>> import os
    >>> os.environ["WEAKINCENTIVES_DBC"] = "1"  # in a program, set it before anything is imported
    >>> @pure
    ... def last(items: list[int]) -> int:
    ...     return items.pop()
    >>> last([1, 2, 3])
    Traceback (most recent call last):
    weakincentives.errors.ContractError: last is @pure but changed its argument `items`
    """
    if not is_enabled():
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
    """A hashable summary of a value, equal to a later one of the same value exactly if nothing in it has changed.

    Nothing is copied, so arguments may hold locks and open connections. An object without inspectable state, such as
    one implemented in C, counts as unchanged while it is the same object.
    """
    return _fingerprint(value, {})


class _Identity:
    """Compares by identity. Keeps a reference, so that the address cannot be reused while fingerprints are compared."""

    __slots__ = ("_object",)

    def __init__(self, value: object) -> None:
        self._object = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self._object is other._object

    def __hash__(self) -> int:
        return id(self._object)


def _fingerprint(value: object, seen: dict[int, int]) -> Fingerprint:
    if isinstance(value, _SCALARS) and type(value) in _SCALARS:
        return type(value), value
    if isinstance(value, _OPAQUE) or get_origin(value) is not None:  # types, such as list[int], hold caches
        return _Identity(value)
    if id(value) in seen:
        return "seen", seen[id(value)]
    seen[id(value)] = len(seen)
    return _Identity(value), _content(value, seen), _state(value, seen)


def _content(value: object, seen: dict[int, int]) -> Fingerprint:
    """The items of a built-in container or of a subclass of one."""
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
    """The attributes in `__dict__` and `__slots__`."""
    # `object.__getstate__`, because an overriding method may omit attributes or have side effects.
    state: Any = object.__getstate__(value)
    parts = cast("tuple[dict[str, object] | None, ...]", state if isinstance(state, tuple) else (state,))
    return tuple((name, _fingerprint(item, seen)) for part in parts if part for name, item in part.items())
