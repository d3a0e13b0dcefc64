"""Runtime type check of configurations: callers may not use a type checker."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

_UNIONS = (Union, UnionType)


def validate_types(config: object) -> str | None:
    """Why the first field with a wrong type is wrong; None if all fields match their annotations.

    The message names the type of a value and not the value, which may be a secret.
    """
    hints = _hints(type(config))
    for field in dataclasses.fields(cast("Any", config)):
        value: object = getattr(config, field.name)
        if not matches_type(value, hints[field.name]):
            return f"{field.name} must be {_described(hints[field.name])}, not {_described_value(value)}"
    return None


def matches_type(value: object, wanted: Any) -> bool:  # noqa: ANN401 - any type form
    """Whether a value has a type. A list counts as a tuple; a string is not a list, and True is not a number."""
    plain, inner = get_origin(wanted) or wanted, get_args(wanted)
    if plain in (Any, Literal):
        return plain is Any or value in inner
    if plain in _UNIONS:
        return any(matches_type(value, member) for member in inner)
    if plain is tuple:
        return _is_list(value) and all(matches_type(item, inner[0]) for item in cast("Collection[object]", value))
    if plain is Mapping:
        return isinstance(value, Mapping) and all(
            matches_type(key, inner[0]) and matches_type(item, inner[1])
            for key, item in cast("Mapping[object, object]", value).items()
        )
    if plain is Callable or getattr(plain, "_is_protocol", False):
        return callable(value)
    return isinstance(value, plain) and not (plain is int and isinstance(value, bool))


@cache
def _hints(of: type) -> Mapping[str, Any]:
    return get_type_hints(of)


def _is_list(value: object) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)


def _described(wanted: Any) -> str:  # noqa: ANN401 - any type form
    plain, inner = get_origin(wanted) or wanted, get_args(wanted)
    if plain in _UNIONS:
        return " or ".join(_described(member) for member in inner)
    if plain is Literal:
        return " or ".join(map(repr, inner))
    if plain is tuple:
        return f"a tuple of {_described(inner[0])}"
    if wanted is NoneType:
        return "None"
    return getattr(plain, "__name__", str(plain))


def _described_value(value: object) -> str:
    if _is_list(value):
        kinds = sorted({type(item).__name__ for item in cast("Collection[object]", value)})
        return f"a {type(value).__name__} of {' and '.join(kinds) or 'nothing'}"
    return "None" if value is None else type(value).__name__
