"""Checks and their outcomes: a check is a function with an area and a behaviour; an exception is its outcome."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, TypeVar, cast

from antwort.conformance.client import ApiClient, Exchange, Unreachable
from antwort.conformance.grammar import Violation

CheckMethod = TypeVar("CheckMethod", bound=Callable[[Any], None])


class Verdict(StrEnum):
    """What came of a check."""

    PASSED = "passed"
    FAILED = "failed"
    UNSUPPORTED = "not supported"
    INCONCLUSIVE = "inconclusive"
    SKIPPED = "skipped"


class Unsupported(Exception):
    """The server refuses the tool, or lacks the endpoint."""


class Inconclusive(Exception):
    """The model did not do what the check needs, so nothing follows about the server."""


class Skipped(Exception):
    """The check cannot run here."""


@dataclass(frozen=True, slots=True)
class Check:
    """A behaviour of an area."""

    area: str
    behaviour: str
    run: Callable[[], None]
    client: ApiClient


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict of a check. A failure has what was expected, what came, and the request to repeat it."""

    area: str
    behaviour: str
    verdict: Verdict
    reason: str = ""
    expected: str = ""
    received: str = ""
    request: Exchange | None = None


_VERDICTS: Final = {
    Unsupported: Verdict.UNSUPPORTED,
    Inconclusive: Verdict.INCONCLUSIVE,
    Skipped: Verdict.SKIPPED,
}
MALFORMED: Final = (KeyError, IndexError, TypeError, AttributeError, ValueError, RecursionError)
"""What reading an object raises that does not have the documented shape."""
_MIN_SECRET: Final = 8


_BEHAVIOURS: Final[set[Callable[..., None]]] = set()


def behaviour(method: CheckMethod) -> CheckMethod:
    """Mark a method as the check of a behaviour, which has the name of the method with hyphens."""
    _BEHAVIOURS.add(method)
    return method


def behaviours_of(kind: type) -> dict[str, str]:
    """The behaviours that a class checks, with the names of the methods, in their order."""
    return {name.replace("_", "-"): name for name, member in vars(kind).items() if member in _BEHAVIOURS}


def without_keys(outcome: Outcome, keys: Sequence[str | None]) -> Outcome:
    """An outcome without the keys of the run, which a server may have returned. Shorter ones are no secrets."""
    secrets = [key for key in keys if key and len(key) >= _MIN_SECRET]

    def hide(value: Any) -> Any:
        match value:
            case str():
                return functools.reduce(lambda text, key: text.replace(key, "$API_KEY"), secrets, value)
            case dict():
                return {hide(name): hide(one) for name, one in cast("dict[Any, Any]", value).items()}
            case list():
                return [hide(one) for one in cast("list[Any]", value)]
            case _:
                return value

    request = outcome.request
    if request is not None:
        request = replace(request, url=hide(request.url), body=hide(request.body))
    texts = {name: hide(getattr(outcome, name)) for name in ("reason", "expected", "received")}
    return replace(outcome, request=request, **texts)


def run_check(check: Check) -> Outcome:
    """Run a check. Everything that the server may cause is an outcome."""
    check.client.last = None
    try:
        check.run()
    except (Unsupported, Inconclusive, Skipped) as reason:
        return Outcome(check.area, check.behaviour, _VERDICTS[type(reason)], str(reason))
    except Violation as violation:
        failure = (violation.expected, violation.received)
    except Unreachable as error:
        failure = ("an answer", str(error))
    except MALFORMED as error:
        failure = ("the documented shape", f"{type(error).__name__}: {error}")
    else:
        return Outcome(check.area, check.behaviour, Verdict.PASSED)
    reason = f"expected {failure[0]}; received {failure[1]}"
    return Outcome(check.area, check.behaviour, Verdict.FAILED, reason, *failure, request=check.client.last)
