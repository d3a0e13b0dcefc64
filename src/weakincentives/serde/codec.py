"""Reading JSON into dataclasses and writing dataclasses as JSON. Every error has a path."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec

from weakincentives.errors import ParseError, SerdeError
from weakincentives.serde.conform import conform

T = TypeVar("T")

# msgspec ends its messages with where it was: "Expected `int`, got `str` - at `$.a[0].b`".
_MSGSPEC_MESSAGE_RE = re.compile(r"^(?P<what>.*) - at `(?P<path>\$.*)`$", re.DOTALL)

_TOO_DEEP = "JSON is nested too deeply"


def parse(data: object, as_type: type[T]) -> T:
    """Read plain data (dicts, lists, strings, numbers) as `as_type`. Unknown keys are ignored."""
    try:
        return msgspec.convert(data, as_type)
    except msgspec.ValidationError as error:
        raise _parse_error(error) from error
    except (TypeError, NameError) as error:
        raise _unsupported_type(as_type, error) from error
    except RecursionError as error:
        raise ParseError(_TOO_DEEP) from error
    except Exception as error:  # a `__post_init__` of a stranger's: whatever it raises, the data was refused
        raise ParseError(f"{_type_name(as_type)} refuses it: {type(error).__name__}: {error}") from error


def parse_json(text: str | bytes, as_type: type[T]) -> T:
    """Read JSON text as `as_type`. Unknown keys are ignored."""
    return parse(_decode(text), as_type)


def parse_strict(text: str | bytes, as_type: type[T], *, allow_extra_keys: bool = False) -> T:
    """Read what a model wrote for `strict_schema(as_type)`.

    Under a strict schema a model cannot leave a field out, so it says null where
    it means the default. And it may not invent keys, unless `allow_extra_keys`.
    """
    try:
        data = conform(_decode(text), as_type, allow_extra_keys=allow_extra_keys)
    except (TypeError, NameError) as error:
        raise _unsupported_type(as_type, error) from error
    except RecursionError as error:
        raise ParseError(_TOO_DEEP) from error
    return parse(data, as_type)


def dump(value: object, *, fallback: Callable[[object], object] | None = None) -> Any:  # noqa: ANN401 - JSON has no narrower type
    """Turn dataclasses and what they hold into plain data.

    `fallback` turns what JSON has no form for into something it has; without it, that is an error.
    """
    try:
        return msgspec.to_builtins(value, enc_hook=fallback, str_keys=True)
    except (TypeError, ValueError, NotImplementedError, RecursionError) as error:
        raise SerdeError(f"cannot write a {type(value).__name__} as JSON: {error}") from error


def dump_json(value: object, *, fallback: Callable[[object], object] | None = None) -> str:
    """Turn dataclasses and what they hold into JSON text, on one line."""
    plain = dump(value, fallback=fallback)
    try:
        return msgspec.json.encode(plain).decode()
    except UnicodeError as error:
        raise SerdeError(f"cannot write a {type(value).__name__} as JSON: {error}") from error


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
    return SerdeError(f"{_type_name(as_type)} is not a type that can be read from JSON: {error}")


def _type_name(of: object) -> str:
    return getattr(of, "__name__", repr(of))
