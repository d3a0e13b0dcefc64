"""`Violation`: a rule of the wire that a server breaks, with what was expected and what came. Pure."""

from __future__ import annotations

import json
from typing import Any, cast

_MAX_SHOWN = 600


class Violation(AssertionError):
    """A server breaks a rule of the wire."""

    def __init__(self, expected: str, received: Any = None) -> None:
        super().__init__(f"expected {expected}; received {show(received)}")
        self.expected = expected
        self.received = show(received)


def show(value: Any) -> str:
    """A received value as JSON, shortened."""
    if isinstance(value, str):
        text = value
    elif isinstance(value, set | frozenset):
        text = ", ".join(sorted(map(str, cast("set[object]", value)))) or "nothing"
    else:
        text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}… ({len(text)} characters)"


def require(condition: object, expected: str, received: Any = None) -> None:
    """Raise `Violation` unless the condition holds."""
    if not condition:
        raise Violation(expected, received)


def require_equal(received: Any, expected: Any, what: str) -> None:
    """Raise `Violation` unless a received value is the expected one."""
    if received != expected:
        raise Violation(f"{what}: {show(expected)}", received)


def require_keys(received: Any, keys: frozenset[str], what: str, *, allowed: frozenset[str] | None = None) -> None:
    """Raise `Violation` unless an object has these keys. Others are refused if `allowed` lists the additional ones."""
    require(isinstance(received, dict), f"{what} is an object", received)
    missing = keys - set(received)
    require(not missing, f"{what} has the keys {show(missing)}", received)
    if allowed is not None:
        unknown = {key for key in received if not key.startswith("antwort:")} - keys - allowed
        require(not unknown, f"{what} has no key {show(unknown)}", received)
