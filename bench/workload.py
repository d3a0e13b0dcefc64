"""The tool-call workload of all clients. Standard library only, because the peers import it too.

The tool takes an int and returns a small dataclass. A fake model calls it `calls` times in each
of `turns` turns, and then answers with a text. Model, prompt and tool are created before timing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log
from statistics import median
from time import perf_counter
from typing import TypeAlias

from measurements import measure_seconds

FEW, MANY = 100, 1_000
FEWEST_ROUNDS, MOST_ROUNDS = 3, 15
MAX_SECONDS = 20.0  # for one shape, once it has the minimum of rounds
SHAPES: dict[str, Callable[[int], tuple[int, int]]] = {
    "in one turn": lambda count: (1, count),
    "in as many turns": lambda count: (count, 1),
}

Counts: TypeAlias = dict[str, tuple[int, int]]
"""The smaller and the larger count of calls, by shape."""

OVER_HTTP: Counts = {"in one turn": (FEW, MANY), "in as many turns": (50, 200)}
"""Fewer turns, to measure growth; `sample_over_http` then runs 1,000 turns, if they are expected to end in time."""

LONG = "long"
MAX_LONG_SECONDS = 300.0  # expected duration above which a peer's 1,000 turns are skipped

Samples: TypeAlias = dict[str, list[float]]
"""Seconds by count of calls; the keys are strings, as in JSON."""


@dataclass(frozen=True)
class Doubled:
    """What the tool returns."""

    number: int


class RunCounter:
    """Counts the runs of the tool, to check that all calls were made."""

    def __init__(self) -> None:
        self.runs = 0

    def double(self, number: int) -> Doubled:
        """The tool."""
        self.runs += 1
        return Doubled(2 * number)


def sample_or_reason(
    run: Callable[[int, int], object], counter: RunCounter, counts: Counts | None = None
) -> dict[str, Samples | str]:
    """Samples of every shape, or the reason why there are none."""
    return {shape: _sample_or_reason(run, counter, shape, counts) for shape in SHAPES}


def _sample_or_reason(
    run: Callable[[int, int], object], counter: RunCounter, shape: str, counts: Counts | None
) -> Samples | str:
    try:
        return sample(run, counter, shape, counts)
    except Exception as error:  # noqa: BLE001 - any failure of a peer is reported in its cell
        return f"{type(error).__name__}: {error}"


def sample_over_http(run: Callable[[int, int], object], counter: RunCounter) -> dict[str, Samples | str]:
    """As `sample_or_reason`, with fewer turns; then 1,000 turns once, or the reason to skip them."""
    samples = sample_or_reason(run, counter, OVER_HTTP)
    return {**samples, LONG: _sample_long(run, counter, samples["in as many turns"])}


def _sample_long(run: Callable[[int, int], object], counter: RunCounter, shorter: Samples | str) -> Samples | str:
    if isinstance(shorter, str):
        return shorter
    (few, took_few), (some, took_some) = ((int(count), median(taken)) for count, taken in shorter.items())
    growth = max(1.0, (took_some / some) / (took_few / few))
    expected = took_some * (MANY / some) * growth ** (log(MANY / some) / log(some / few))
    if expected > MAX_LONG_SECONDS:
        return f"skipped, expected {expected / 60:.0f} min: {some} turns took {took_some:.0f} s, growing"
    return {str(MANY): [_sample_once(run, counter, MANY, 1)]}


def sample(run: Callable[[int, int], object], counter: RunCounter, shape: str, counts: Counts | None = None) -> Samples:
    """Time `run(turns, calls)` with few calls and with many.

    Both alternate, so that noise affects both. Slow workloads get fewer rounds.
    """
    few, many = (counts or {}).get(shape, (FEW, MANY))
    samples: Samples = {str(few): [], str(many): []}
    started = perf_counter()
    _sample_once(run, counter, *SHAPES[shape](few))  # warm-up
    for rounds in range(MOST_ROUNDS):
        if rounds >= FEWEST_ROUNDS and perf_counter() - started > MAX_SECONDS:
            break
        for count in (few, many):
            samples[str(count)].append(_sample_once(run, counter, *SHAPES[shape](count)))
    return samples


def _sample_once(run: Callable[[int, int], object], counter: RunCounter, turns: int, calls: int) -> float:
    counter.runs = 0
    took = measure_seconds(lambda: run(turns, calls))
    if counter.runs != turns * calls:
        raise RuntimeError(f"the tool ran {counter.runs} times, not {turns * calls}")
    return took
