"""The tool calls that we and our peers are all measured on. Standard library only: the peers run this too.

The tool takes an int and returns a small dataclass. A fake model calls it `calls` times in each
of `turns` turns, and then answers with a text. Model, prompt and tool exist before the clock starts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log
from statistics import median
from time import perf_counter
from typing import TypeAlias

from readings import seconds

FEW, MANY = 100, 1_000
FEWEST_ROUNDS, MOST_ROUNDS = 3, 15
PATIENCE = 20.0  # seconds for one shape, after the fewest rounds
SHAPES: dict[str, Callable[[int], tuple[int, int]]] = {
    "in one turn": lambda count: (1, count),
    "in as many turns": lambda count: (count, 1),
}

Counts: TypeAlias = dict[str, tuple[int, int]]
"""How many are few and how many are many, for each shape."""

OVER_HTTP: Counts = {"in one turn": (FEW, MANY), "in as many turns": (50, 200)}
"""Fewer turns, to see how they grow; `sample_over_http` then does as many as calls, where that ends in time."""

LONG = "long"
LONGEST = 300.0  # seconds for as many turns as calls, by whoever is slow

Samples: TypeAlias = dict[str, list[float]]
"""Seconds, for each count of calls; its keys are strings because JSON's are."""


@dataclass(frozen=True)
class Doubled:
    """What the tool returns."""

    number: int


class Tally:
    """Counts the tool's runs, so that nobody is quick by not doing the work."""

    def __init__(self) -> None:
        self.runs = 0

    def double(self, number: int) -> Doubled:
        """The tool's work."""
        self.runs += 1
        return Doubled(2 * number)


def sample_or_reason(
    run: Callable[[int, int], object], tally: Tally, counts: Counts | None = None
) -> dict[str, Samples | str]:
    """Time every shape; where one cannot be had, say why."""
    return {shape: _sample_or_reason(run, tally, shape, counts) for shape in SHAPES}


def _sample_or_reason(
    run: Callable[[int, int], object], tally: Tally, shape: str, counts: Counts | None
) -> Samples | str:
    try:
        return sample(run, tally, shape, counts)
    except Exception as error:  # noqa: BLE001 - whatever keeps a peer from it is what its cell says
        return f"{type(error).__name__}: {error}"


def sample_over_http(run: Callable[[int, int], object], tally: Tally) -> dict[str, Samples | str]:
    """As `sample_or_reason`, with fewer turns; and as many turns as calls, once, or why not."""
    samples = sample_or_reason(run, tally, OVER_HTTP)
    return {**samples, LONG: _sample_long(run, tally, samples["in as many turns"])}


def _sample_long(run: Callable[[int, int], object], tally: Tally, shorter: Samples | str) -> Samples | str:
    if isinstance(shorter, str):
        return shorter
    (few, took_few), (some, took_some) = ((int(count), median(taken)) for count, taken in shorter.items())
    growth = max(1.0, (took_some / some) / (took_few / few))
    expected = took_some * (MANY / some) * growth ** (log(MANY / some) / log(some / few))
    if expected > LONGEST:
        return f"not run, would take {expected / 60:.0f} min: {some} turns took {took_some:.0f} s, and each grows"
    return {str(MANY): [_sample_once(run, tally, MANY, 1)]}


def sample(run: Callable[[int, int], object], tally: Tally, shape: str, counts: Counts | None = None) -> Samples:
    """Time `run(turns, calls)` with few calls and with many.

    These take turns, so that a noisy moment hits both. Whoever is slow is measured less often.
    """
    few, many = (counts or {}).get(shape, (FEW, MANY))
    samples: Samples = {str(few): [], str(many): []}
    started = perf_counter()
    _sample_once(run, tally, *SHAPES[shape](few))  # warms up
    for rounds in range(MOST_ROUNDS):
        if rounds >= FEWEST_ROUNDS and perf_counter() - started > PATIENCE:
            break
        for count in (few, many):
            samples[str(count)].append(_sample_once(run, tally, *SHAPES[shape](count)))
    return samples


def _sample_once(run: Callable[[int, int], object], tally: Tally, turns: int, calls: int) -> float:
    tally.runs = 0
    took = seconds(lambda: run(turns, calls))
    if tally.runs != turns * calls:
        raise RuntimeError(f"the tool ran {tally.runs} times, not {turns * calls}")
    return took
