"""What a request costs the server, how many it takes, how soon it speaks, what an open stream weighs, when it is ready.

One upstream for all: `upstream.py`, a model that costs nearly nothing, in a process of its own, as the load (`load.py`)
is. The servers and their ways to be asked are in `contenders.py`; they take turns, so that noise hits all of them.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from statistics import median
from typing import Any, TypeAlias

from contenders import RefusedError, Way, litellm_version, stage
from processes import NotReadyError
from readings import Reading, Row, Suite, Unit

AT_ONCE = (1, 16, 256)
ROUNDS, STARTS = 3, 5
STREAMS, WARM_STREAMS = 1_000, 32
OURS = ("stateless", "stored")
THEIRS = ("LiteLLM /responses", "LiteLLM /chat")
TARGETS = {"stateless": 0.002, "stored": 0.004}  # seconds of processor time for a request
READY = 1.5

Start: TypeAlias = Callable[[], AbstractContextManager[dict[str, Way]]]
Samples: TypeAlias = defaultdict[tuple[str, str], list[float]]
"""What was measured, by what it is and by the way that was asked."""


def suite() -> Suite:
    """Everything in one run."""
    samples: Samples = defaultdict(list)
    failures: dict[str, str] = {}
    with stage() as place:
        for _ in range(STARTS):
            begin(samples, place.ours, "stateless")
        for name in THEIRS:
            with tolerated(failures, name):
                begin(samples, place.litellm, name)
        with contextlib.ExitStack() as servers:
            ways = servers.enter_context(place.ours())
            if len(failures) < len(THEIRS):
                ways |= servers.enter_context(place.litellm())
            for rounds in range(ROUNDS + 1):
                for name in [*OURS, *(name for name in THEIRS if name not in failures)]:
                    with tolerated(failures, name):
                        (ask if rounds else warm_up)(samples, name, ways[name])
    return Suite(rows(samples, failures), [f"Server, beside LiteLLM {litellm_version()}:", *NOTES])


@contextlib.contextmanager
def tolerated(failures: dict[str, str], name: str) -> Iterator[None]:
    """A peer that fails says so in its cells. If we do, the run ends."""
    try:
        yield
    except (NotReadyError, RefusedError) as failure:
        if name in OURS:
            raise
        failures[name] = str(failure)


NOTES = [
    "  one process each, a key for every request, one upstream that answers at once with eight words. We always",
    "  ask it for a stream, LiteLLM when it is asked for one; both speak to its chat completions, /responses too.",
    "  CPU is that of the server's process alone. Load and upstream share the cores with it, which bounds the rates.",
]


# ── what is measured ─────────────────────────────────────────────────────────────────────────────────────────────────


def begin(samples: Samples, start: Start, name: str) -> None:
    """Start a server anew, and weigh it while it holds many streams open."""
    with start() as ways:
        way = ways[name]
        samples["ready", name].append(way.server.ready_after)
        with way.streams(WARM_STREAMS):
            pass
        time.sleep(1)  # it may still be clearing up
        before = way.server.megabytes()
        samples["idle", name].append(before)
        with way.streams(STREAMS) as opened:
            time.sleep(1)
            samples["each", name].append((way.server.megabytes() - before) / STREAMS)
            samples["opened", name].append(opened["seconds"])


def warm_up(_: Samples, __: str, way: Way) -> None:
    """What happens only once is not counted."""
    for stream in (True, False):
        way.ask("quick", at_once=16, stream=stream)


def ask(samples: Samples, name: str, way: Way) -> None:
    """One round of all that needs a server which has been up for a while."""
    for at_once in AT_ONCE:
        spent, outcome = costs(way, "quick", at_once=at_once)
        samples[f"cpu {at_once}", name].append(spent / outcome["answered"])
        samples[f"rate {at_once}", name].append(outcome["answered"] / outcome["seconds"])
    outcome = way.ask("quick", at_once=1, stream=True)
    samples["first event", name].append(median(outcome["heard"][0]))
    samples["first word", name].append(median(outcome["heard"][1]))
    for stream, what in ((True, "streamed"), (False, "whole")):
        spent, outcome = costs(way, "paced", at_once=16, stream=stream)
        samples[what, name].append(spent / outcome["answered"])


def costs(way: Way, model: str, *, at_once: int, stream: bool = False) -> tuple[float, dict[str, Any]]:
    """The seconds of processor time that asking for a while takes the server, and what came of it."""
    before = way.server.cpu()
    outcome = way.ask(model, at_once=at_once, stream=stream)
    return way.server.cpu() - before, outcome


# ── what is shown ────────────────────────────────────────────────────────────────────────────────────────────────────


def rows(samples: Samples, failures: Mapping[str, str]) -> list[Row]:
    """The lines of the table; where a peer has no reading, why."""

    def row(label: str, what: str, way: str = "stateless", unit: Unit = "s", target: float | None = None) -> Row:
        peers: dict[str, Reading | str] = {"LiteLLM": "stores nothing without Postgres"}
        if way != "stored":
            peers = {name: theirs(samples[what, name], unit, name) for name in THEIRS}
        return Row(label, Reading.of(samples[what, way], unit), peers, target)

    def of_process(label: str, what: str, unit: Unit = "s", target: float | None = None) -> Row:
        """However it is asked, it is one process."""
        taken = [sample for name in THEIRS for sample in samples[what, name]]
        return Row(
            label, Reading.of(samples[what, "stateless"], unit), {"LiteLLM": theirs(taken, unit, THEIRS[0])}, target
        )

    def theirs(taken: list[float], unit: Unit, name: str) -> Reading | str:
        return Reading.of(taken, unit) if taken else failures.get(name, "not measured: it failed before")

    ways = [(way, at_once) for way in OURS for at_once in AT_ONCE]
    return [
        *(row(f"CPU of a request, {way}, {n} at once", f"cpu {n}", way, target=TARGETS[way]) for way, n in ways),
        *(row(f"requests, {way}, {n} at once", f"rate {n}", way, "/s") for way, n in ways),
        row("first event of a stream", "first event"),
        row("first event of a stream, stored", "first event", "stored"),
        row("first word of a stream", "first word"),
        row("CPU of 100 words, streamed", "streamed"),
        row("CPU of 100 words, not streamed", "whole"),
        row(f"{STREAMS:,} streams opened at once, all heard", "opened"),
        row(f"memory of each of {STREAMS:,} open streams", "each", unit="MB"),
        of_process("memory before them", "idle", "MB"),
        of_process("start to ready", "ready", target=READY),
    ]
