"""The suite: all checks in order, the selection of some, and a run of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from antwort.conformance.checks import Check, Outcome, Verdict, behaviours_of, run_check
from antwort.conformance.endpoints import AREAS
from antwort.conformance.target import Target
from antwort.conformance.tools import CASES, ToolChecks, applicable


class UnknownCheck(ValueError):
    """A selection names no check."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The checks to run: names of areas, or `area:behaviour`. Empty: all of them."""

    names: Collection[str] = ()

    def has(self, area: str, behaviour: str) -> bool:
        return not self.names or area in self.names or f"{area}:{behaviour}" in self.names

    def require_known(self) -> None:
        """Raise `UnknownCheck` for a name that selects nothing."""
        known = {f"{area}:{behaviour}" for area, behaviours in ALL_CHECKS.items() for behaviour in behaviours}
        if unknown := [name for name in self.names if name not in known and name not in ALL_CHECKS]:
            raise UnknownCheck(f"'{unknown[0]}' is no check. `antwort conformance --list` prints all of them.")


def run_suite(
    target: Target, selection: Selection, progress: Callable[[str, Sequence[Outcome]], object]
) -> Iterator[Outcome]:
    """Run the selected checks. `progress` gets the outcomes of each area when it has ended."""
    try:
        for area, behaviours in _areas(target):
            selected = {name: run for name, run in behaviours.items() if selection.has(area, name)}
            outcomes = [run_check(Check(area, name, run, target.client)) for name, run in selected.items()]
            if outcomes:
                progress(area, outcomes)
            yield from outcomes
    finally:
        target.close()


def has_failed(outcomes: Sequence[Outcome], required: Selection) -> bool:
    """Whether a check has failed, or a required one has not passed."""
    return any(
        outcome.verdict is Verdict.FAILED
        or (outcome.verdict is not Verdict.PASSED and required.names and required.has(outcome.area, outcome.behaviour))
        for outcome in outcomes
    )


def _areas(target: Target) -> Iterator[tuple[str, Mapping[str, Callable[[], None]]]]:
    """The checks of each area."""
    for case in CASES:
        checks = ToolChecks(case, target)
        yield checks.area, checks.behaviours()
    for kind in AREAS:
        yield kind.area, kind(target).behaviours()


ALL_CHECKS: Final[Mapping[str, Sequence[str]]] = {
    **{case.name: applicable(case) for case in CASES},
    **{kind.area: list(behaviours_of(kind)) for kind in AREAS},
}
"""The behaviours of all areas."""
