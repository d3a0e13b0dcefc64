"""Benchmark: CPU per request, throughput, stream latency, memory per stream and start-up, with LiteLLM as peer.

All servers use one dummy upstream (`upstream.py`); it and the load generator (`load.py`) are separate processes.
`compared_servers.py` starts the servers; they alternate, so that noise affects all of them.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from statistics import median
from typing import Any, TypeAlias

from compared_servers import Endpoint, LoadFailedError, compared_servers, litellm_version
from measurements import Measurement, Row, Suite, Unit
from processes import ServerNotReadyError

AT_ONCE = (1, 16, 256)
ROUNDS, STARTS = 3, 5
STREAMS, WARM_STREAMS = 1_000, 32
ANTWORT_ENDPOINTS = ("stateless", "stored", "chat", "messages")
LITELLM_ENDPOINTS = ("LiteLLM /responses", "LiteLLM /chat")
TARGETS = {"stateless": 0.002, "stored": 0.004, "chat": 0.002, "messages": 0.002}  # seconds of CPU time per request
READY_TARGET = 1.5

Start: TypeAlias = Callable[[], AbstractContextManager[dict[str, Endpoint]]]
Samples: TypeAlias = defaultdict[tuple[str, str], list[float]]
"""Samples by quantity and endpoint."""


def suite() -> Suite:
    """All measurements in one run."""
    samples: Samples = defaultdict(list)
    failures: dict[str, str] = {}
    with compared_servers() as servers:
        for _ in range(STARTS):
            measure_start(samples, servers.start_antwort, "stateless")
        for name in LITELLM_ENDPOINTS:
            with collect_failure(failures, name):
                measure_start(samples, servers.start_litellm, name)
        with contextlib.ExitStack() as running:
            endpoints = running.enter_context(servers.start_antwort())
            if len(failures) < len(LITELLM_ENDPOINTS):
                endpoints |= running.enter_context(servers.start_litellm())
            for rounds in range(ROUNDS + 1):
                for name in [*ANTWORT_ENDPOINTS, *(name for name in LITELLM_ENDPOINTS if name not in failures)]:
                    with collect_failure(failures, name):
                        (measure_round if rounds else warm_up)(samples, name, endpoints[name])
                if rounds:
                    measure_wires(samples, endpoints)
    return Suite(rows(samples, failures), [f"Server, beside LiteLLM {litellm_version()}:", *NOTES])


@contextlib.contextmanager
def collect_failure(failures: dict[str, str], name: str) -> Iterator[None]:
    """Keep the failure of a peer for its cells. A failure of antwort ends the run."""
    try:
        yield
    except (ServerNotReadyError, LoadFailedError) as failure:
        if name in ANTWORT_ENDPOINTS:
            raise
        failures[name] = str(failure)


NOTES = [
    "  one process each, an API key with every request, one upstream that answers with eight words. antwort always",
    "  streams from it, LiteLLM only for streamed requests; both use its chat completions, also for /responses.",
    "  stateless and stored are requests to /v1/responses, chat to /v1/chat/completions, messages to /v1/messages.",
    "  CPU is that of the server process. Load generator and upstream share its cores, which limits throughput.",
]


# ── measurements ─────────────────────────────────────────────────────────────────────────────────────────────────


def measure_start(samples: Samples, start: Start, name: str) -> None:
    """Start a server, and measure its memory with many open streams."""
    with start() as endpoints:
        endpoint = endpoints[name]
        samples["ready", name].append(endpoint.server.ready_after)
        with endpoint.open_streams(WARM_STREAMS):
            pass
        time.sleep(1)  # let it finish its clean-up
        before = endpoint.server.resident_megabytes()
        samples["idle", name].append(before)
        with endpoint.open_streams(STREAMS) as opened:
            time.sleep(1)
            samples["each", name].append((endpoint.server.resident_megabytes() - before) / STREAMS)
            samples["opened", name].append(opened["seconds"])


def warm_up(_: Samples, __: str, endpoint: Endpoint) -> None:
    """Warm-up requests."""
    for stream in (True, False):
        endpoint.run_load("quick", at_once=16, stream=stream)


def measure_round(samples: Samples, name: str, endpoint: Endpoint) -> None:
    """One round of the measurements on a running server."""
    for at_once in AT_ONCE:
        cpu, outcome = cpu_of_load(endpoint, "quick", at_once=at_once)
        samples[f"cpu {at_once}", name].append(cpu / outcome["responses"])
        samples[f"rate {at_once}", name].append(outcome["responses"] / outcome["seconds"])
    outcome = endpoint.run_load("quick", at_once=1, stream=True)
    samples["first event", name].append(median(outcome["mark_seconds"][0]))
    samples["first word", name].append(median(outcome["mark_seconds"][1]))
    for stream, what in ((True, "streamed"), (False, "whole")):
        cpu, outcome = cpu_of_load(endpoint, "paced", at_once=16, stream=stream)
        samples[what, name].append(cpu / outcome["responses"])


def measure_wires(samples: Samples, endpoints: Mapping[str, Endpoint]) -> None:
    """CPU of the same stream over HTTP and over a WebSocket: eight words, and 100 words."""
    for name in ("stateless", "websocket"):
        for model in ("quick", "paced"):
            cpu, outcome = cpu_of_load(endpoints[name], model, at_once=16, stream=True)
            samples[f"wire {model}", name].append(cpu / outcome["responses"])


def cpu_of_load(endpoint: Endpoint, model: str, *, at_once: int, stream: bool = False) -> tuple[float, dict[str, Any]]:
    """CPU seconds of the server during a load, and the result of the load."""
    before = endpoint.server.cpu_seconds()
    outcome = endpoint.run_load(model, at_once=at_once, stream=stream)
    return endpoint.server.cpu_seconds() - before, outcome


# ── table rows ────────────────────────────────────────────────────────────────────────────────────────────────────


def rows(samples: Samples, failures: Mapping[str, str]) -> list[Row]:
    """The rows of the table, with reasons for missing measurements."""

    def row(label: str, what: str, endpoint: str = "stateless", unit: Unit = "s", target: float | None = None) -> Row:
        peers: dict[str, Measurement | str] = {"LiteLLM": "stores nothing without Postgres"}
        if endpoint != "stored":
            peers = {name: peer_value(samples[what, name], unit, name) for name in LITELLM_ENDPOINTS}
        return Row(label, Measurement.from_samples(samples[what, endpoint], unit), peers, target)

    def of_process(label: str, what: str, unit: Unit = "s", target: float | None = None) -> Row:
        """A row about the process, for all of its endpoints."""
        taken = [sample for name in LITELLM_ENDPOINTS for sample in samples[what, name]]
        return Row(
            label,
            Measurement.from_samples(samples[what, "stateless"], unit),
            {"LiteLLM": peer_value(taken, unit, LITELLM_ENDPOINTS[0])},
            target,
        )

    def peer_value(taken: list[float], unit: Unit, name: str) -> Measurement | str:
        return Measurement.from_samples(taken, unit) if taken else failures.get(name, "not measured: failed before")

    endpoints = [(endpoint, at_once) for endpoint in ANTWORT_ENDPOINTS for at_once in AT_ONCE]
    return [
        *(
            row(f"CPU per request, {endpoint}, {n} concurrent", f"cpu {n}", endpoint, target=TARGETS[endpoint])
            for endpoint, n in endpoints
        ),
        *(
            row(f"requests per second, {endpoint}, {n} concurrent", f"rate {n}", endpoint, "/s")
            for endpoint, n in endpoints
        ),
        row("first event of a stream", "first event"),
        row("first event of a stream, stored", "first event", "stored"),
        row("first word of a stream", "first word"),
        row("CPU of 100 words, streamed", "streamed"),
        row("CPU of 100 words, not streamed", "whole"),
        row("CPU of 100 words, streamed, chat", "streamed", "chat"),
        row("CPU of 100 words, not streamed, chat", "whole", "chat"),
        row("CPU of 100 words, streamed, messages", "streamed", "messages"),
        row("CPU of 100 words, not streamed, messages", "whole", "messages"),
        *(
            Row(f"CPU of {words} words, streamed over {wire}", Measurement.from_samples(samples[f"wire {model}", name]))
            for model, words in (("quick", 8), ("paced", 100))
            for name, wire in (("stateless", "HTTP"), ("websocket", "a WebSocket"))
        ),
        row(f"{STREAMS:,} streams opened, first word on all", "opened"),
        row(f"memory per stream, {STREAMS:,} open", "each", unit="MB"),
        of_process("memory without streams", "idle", "MB"),
        of_process("start to ready", "ready", target=READY_TARGET),
    ]
