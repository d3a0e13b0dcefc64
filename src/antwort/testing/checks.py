"""Assertions of the conformance suites: `AssertionError`s with both values in the message, also under `python -O`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


def check(condition: bool, message: str) -> None:  # noqa: FBT001 - an assertion
    """Assert."""
    if not condition:
        raise AssertionError(message)


def check_equal(actual: object, expected: object) -> None:
    """Assert equality."""
    check(actual == expected, f"\n  got      {actual!r}\n  expected {expected!r}")


def not_none(value: T | None) -> T:
    """Assert that a value is not None."""
    if value is None:
        raise AssertionError("got None, expected a value")
    return value


async def check_raises(expected: type[Exception], call: Callable[[], Awaitable[object]]) -> None:
    """Assert that a call raises an exception of this type."""
    try:
        result = await call()
    except expected:
        return
    raise AssertionError(f"got {result!r}, expected {expected.__name__}")
