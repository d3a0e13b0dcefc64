"""Checks and their outcomes: a check is a function with an area and a behaviour; an exception is its outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

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
MALFORMED: Final = (KeyError, IndexError, TypeError, AttributeError, ValueError)
"""What reading an object raises that does not have the documented shape."""


_BEHAVIOURS: Final[set[Callable[..., None]]] = set()


def behaviour(method: CheckMethod) -> CheckMethod:
    """Mark a method as the check of a behaviour, which has the name of the method with hyphens."""
    _BEHAVIOURS.add(method)
    return method


def behaviours_of(kind: type) -> dict[str, str]:
    """The behaviours that a class checks, with the names of the methods, in their order."""
    return {name.replace("_", "-"): name for name, member in vars(kind).items() if member in _BEHAVIOURS}


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
