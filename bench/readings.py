"""What a suite returns, and how anything is timed. Standard library only: the peers run this too."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Literal, TypeAlias

Unit: TypeAlias = Literal["s", "x", "MB", "/s"]


@dataclass(frozen=True)
class Reading:
    """Several measurements of one thing: the middle one, and the one that the machine disturbed least."""

    p50: float
    least: float
    unit: Unit = "s"

    @classmethod
    def of(cls, samples: list[float], unit: Unit = "s") -> Reading:
        return cls(median(samples), max(samples) if unit == "/s" else min(samples), unit)

    def per(self, other: Reading) -> Reading:
        """How many times the other this is."""
        return Reading(self.p50 / other.p50, self.least / other.least, "x")

    def over(self, count: int) -> Reading:
        """The share of one, where `count` were measured together."""
        return Reading(self.p50 / count, self.least / count, self.unit)


@dataclass(frozen=True)
class Row:
    """One line of the table. A peer that cannot do it says why in place of a reading."""

    name: str
    ours: Reading
    peers: Mapping[str, Reading | str] = field(default_factory=dict)
    target: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the target is met, in the middle measurement; None where there is no target."""
        return None if self.target is None else self.ours.p50 <= self.target

    def ratio(self, peer: str) -> float | None:
        """How many times ours a peer takes; None where it has no reading, or where the reading is a ratio itself."""
        theirs = self.peers[peer]
        return theirs.per(self.ours).p50 if isinstance(theirs, Reading) and theirs.unit != "x" else None


@dataclass(frozen=True)
class Suite:
    """The rows of one subject, and what a reader must know to trust them."""

    rows: list[Row]
    notes: list[str] = field(default_factory=list)


def seconds(run: Callable[[], object]) -> float:
    """How long one run takes. The garbage of earlier runs is not charged to it; its own is."""
    gc.collect()
    start = perf_counter()
    run()
    return perf_counter() - start


def timed(run: Callable[[], object], *, times: int) -> Reading:
    """Run it once to warm up, then some times for the reading."""
    run()
    return Reading.of([seconds(run) for _ in range(times)])
