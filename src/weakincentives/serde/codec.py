"""JSON codec: parses JSON into dataclasses and dumps dataclasses as JSON. Parse errors have a path."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec

from weakincentives.errors import ParseError, SerdeError
from weakincentives.serde.conform import conform

T = TypeVar("T")

# msgspec ends its messages with the path: "Expected `int`, got `str` - at `$.a[0].b`".
_MSGSPEC_MESSAGE_RE = re.compile(r"^(?P<what>.*) - at `(?P<path>\$.*)`$", re.DOTALL)

_TOO_DEEP = "JSON nesting is too deep"


def parse(data: object, as_type: type[T]) -> T:
    """Convert JSON-like data (dicts, lists, strings, numbers) to `as_type`. Unknown keys are ignored."""
    try:
        return msgspec.convert(data, as_type)
    except msgspec.ValidationError as error:
        raise _parse_error(error) from error
    except (TypeError, NameError) as error:
        raise _unsupported_type(as_type, error) from error
    except RecursionError as error:
        raise ParseError(_TOO_DEEP) from error
    except Exception as error:  # raised by a `__post_init__`: the data is invalid
        raise ParseError(f"{_type_name(as_type)} rejects the value: {type(error).__name__}: {error}") from error


def parse_json(text: str | bytes, as_type: type[T]) -> T:
    """Parse JSON text as `as_type`. Unknown keys are ignored."""
    return parse(_decode(text), as_type)


def parse_strict(text: str | bytes, as_type: type[T], *, allow_extra_keys: bool = False) -> T:
    """Parse JSON that a model wrote for `strict_schema(as_type)`.

    Under a strict schema every field is present and null stands for the default. Unknown keys are an error unless
    `allow_extra_keys`.
    """
    try:
        data = conform(_decode(text), as_type, allow_extra_keys=allow_extra_keys)
    except (TypeError, NameError) as error:
        raise _unsupported_type(as_type, error) from error
    except RecursionError as error:
        raise ParseError(_TOO_DEEP) from error
    return parse(data, as_type)


def dump(value: object, *, fallback: Callable[[object], object] | None = None) -> Any:  # noqa: ANN401 - JSON has no narrower type
    """Convert dataclasses and their contents to JSON-like data.

    `fallback` converts values of types that JSON cannot represent; without it, they are an error.
    """
    try:
        return msgspec.to_builtins(value, enc_hook=fallback, str_keys=True)
    except (TypeError, ValueError, NotImplementedError, RecursionError) as error:
        raise SerdeError(f"cannot encode a {type(value).__name__} as JSON: {error}") from error


def dump_json(value: object, *, fallback: Callable[[object], object] | None = None) -> str:
    """Convert dataclasses and their contents to JSON text on one line."""
    plain = dump(value, fallback=fallback)
    try:
        return msgspec.json.encode(plain).decode()
    except UnicodeError as error:
        raise SerdeError(f"cannot encode a {type(value).__name__} as JSON: {error}") from error


def _decode(text: str | bytes) -> object:
    try:
        return cast("object", msgspec.json.decode(text))
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ParseError(f"not valid JSON: {error}") from error
    except RecursionError as error:
        raise ParseError(_TOO_DEEP) from error


def _parse_error(error: msgspec.ValidationError) -> ParseError:
    message = str(error)
    if found := _MSGSPEC_MESSAGE_RE.match(message):
        return ParseError(found["what"], path=found["path"])
    return ParseError(message)


def _unsupported_type(as_type: object, error: Exception) -> SerdeError:
    return SerdeError(f"{_type_name(as_type)} cannot be parsed from JSON: {error}")


def _type_name(value: object) -> str:
    return getattr(value, "__name__", repr(value))
