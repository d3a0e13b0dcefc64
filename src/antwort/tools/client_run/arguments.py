"""Arguments of calls that the client runs, as models write them: JSON, checked against a struct. Pure."""

from __future__ import annotations

import json
from typing import Any, Final, TypeVar, cast

import msgspec

T = TypeVar("T")

_MAX_SHOWN: Final = 300


class InvalidArguments(ValueError):
    """The arguments of a call are invalid. The message tells the model how to write them."""


def read_object(written: str) -> dict[str, Any]:
    """The JSON object of the arguments, without unpaired surrogates, which UTF-8 cannot encode."""
    try:
        given: object = json.loads(written or "{}", strict=False)
        if "\\u" in written:
            given = _encodable(given)
    except (ValueError, RecursionError) as error:
        raise InvalidArguments(f"the arguments are not valid JSON ({error})") from error
    if not isinstance(given, dict):
        raise InvalidArguments("the arguments must be a JSON object")
    return cast("dict[str, Any]", given)


def convert(given: dict[str, Any], into: type[T]) -> T:
    """The arguments as a struct. Numbers may be written as strings."""
    try:
        return msgspec.convert(given, into, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidArguments(f"the arguments are invalid: {str(error)[:_MAX_SHOWN]}") from error


def without_nulls(value: msgspec.Struct) -> dict[str, Any]:
    """The fields of a struct that are set, as JSON."""
    return {name: inner for name, inner in msgspec.to_builtins(value).items() if inner is not None}


def _encodable(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value).items()
        return {cast("str", _encodable(name)): _encodable(inner) for name, inner in fields}
    return [_encodable(inner) for inner in cast("list[object]", value)] if isinstance(value, list) else value
