"""Measurements, table rows and timing. Standard library only, because the peers import it too."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Literal, TypeAlias

Unit: TypeAlias = Literal["s", "x", "MB", "/s"]


@dataclass(frozen=True)
class Measurement:
    """Median and best of several samples."""

    p50: float
    best: float
    unit: Unit = "s"

    @classmethod
    def from_samples(cls, samples: list[float], unit: Unit = "s") -> Measurement:
        return cls(median(samples), max(samples) if unit == "/s" else min(samples), unit)

    def ratio_to(self, other: Measurement) -> Measurement:
        """The ratio of two measurements."""
        return Measurement(self.p50 / other.p50, self.best / other.best, "x")

    def divided_by(self, count: int) -> Measurement:
        """The value per item, if `count` items were measured together."""
        return Measurement(self.p50 / count, self.best / count, self.unit)


@dataclass(frozen=True)
class Row:
    """One row of the table. A peer without a measurement has a reason instead."""

    name: str
    measured: Measurement
    peers: Mapping[str, Measurement | str] = field(default_factory=dict)
    target: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the median meets the target; None without a target."""
        return None if self.target is None else self.measured.p50 <= self.target

    def ratio(self, peer: str) -> float | None:
        """The ratio of a peer to this project; None without a measurement, or if the measurement is a ratio itself."""
        value = self.peers[peer]
        return value.ratio_to(self.measured).p50 if isinstance(value, Measurement) and value.unit != "x" else None


@dataclass(frozen=True)
class Suite:
    """The rows of one suite, and notes on how they were measured."""

    rows: list[Row]
    notes: list[str] = field(default_factory=list)


def measure_seconds(run: Callable[[], object]) -> float:
    """Duration of one run. Garbage of earlier runs is collected before."""
    gc.collect()
    start = perf_counter()
    run()
    return perf_counter() - start


def measure(run: Callable[[], object], *, times: int) -> Measurement:
    """Run once to warm up, then `times` times for the samples."""
    run()
    return Measurement.from_samples([measure_seconds(run) for _ in range(times)])
