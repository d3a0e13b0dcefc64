"""Benchmark: CPU per request and throughput on Postgres with one and two replicas, beside SQLite.

The upstream and the load generator are those of `server.py`. SQLite, one replica and two replicas on Postgres run at
the same time and take turns, so that noise affects all of them. With two replicas each gets half of the connections.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeAlias

from compared_servers import ComparedServers, Endpoint, compared_servers
from measurements import Measurement, Row, Suite, Unit
from postgres_server import PostgresProcess, started_postgres

AT_ONCE = (2, 16, 256)
ROUNDS = 3
KINDS = ("stateless", "stored")
ONE, TWO, SQLITE = "1 replica", "2 replicas", "SQLite"

Samples: TypeAlias = defaultdict[tuple[str, str], list[float]]
"""Samples by quantity and deployment."""


@dataclass(frozen=True)
class Deployment:
    """One or more servers on one database; `postgres` is None for SQLite."""

    replicas: Sequence[Mapping[str, Endpoint]]
    postgres: PostgresProcess | None = None

    def cpu_of_load(self, kind: str, at_once: int) -> dict[str, float]:
        """Run the load on all replicas at once: CPU per response of the servers and of Postgres, and the rate."""
        endpoints = [replica[kind] for replica in self.replicas]
        before = sum(endpoint.server.cpu_seconds() for endpoint in endpoints)
        with contextlib.ExitStack() as metered:
            used = metered.enter_context(self.postgres.cpu_meter()) if self.postgres else [0.0]
            with ThreadPoolExecutor(len(endpoints)) as threads:
                share = at_once // len(endpoints)
                outcomes = list(threads.map(lambda endpoint: endpoint.run_load("quick", at_once=share), endpoints))
            metered.close()
        responses = sum(outcome["responses"] for outcome in outcomes)
        after = sum(endpoint.server.cpu_seconds() for endpoint in endpoints)
        return {
            "cpu": (after - before) / responses,
            "database": used[0] / responses,
            "rate": sum(outcome["responses"] / outcome["seconds"] for outcome in outcomes),
        }

    def first_event(self, kind: str) -> float:
        """Time from a request to the first event of its stream."""
        outcome: dict[str, Any] = self.replicas[0][kind].run_load("quick", at_once=1, stream=True)
        return median(outcome["mark_seconds"][0])


def suite() -> Suite:
    """All measurements in one run."""
    samples: Samples = defaultdict(list)
    with compared_servers() as servers, deployments(servers) as (running, version):
        for number in range(ROUNDS + 1):
            for name, deployment in running.items():
                measure_round(samples if number else defaultdict(list), name, deployment)
    return Suite(rows(samples), [f"Postgres {version}, beside SQLite, both on this machine's disk:", *NOTES])


NOTES = [
    "  one upstream that answers with eight words, an API key with every request. Servers, Postgres, upstream and load",
    "  generator share the cores, so the rate of two replicas is not twice that of one: CPU per request is the row to",
    "  compare. CPU of a request is that of the server processes; CPU of Postgres is that of all of its processes.",
]


@contextlib.contextmanager
def deployments(servers: ComparedServers) -> Iterator[tuple[dict[str, Deployment], str]]:
    """SQLite, and Postgres with one and with two replicas, each on a schema of its own."""
    with contextlib.ExitStack() as running:
        postgres = running.enter_context(started_postgres())
        sqlite = running.enter_context(servers.start_antwort())

        def replicas(count: int) -> Deployment:
            folder = servers.folder / f"replicas-{count}"
            folder.mkdir()
            url = postgres.schema_url(f"replicas_{count}")
            started = [
                running.enter_context(servers.start_replica(folder, url, f"replica-{number}"))
                for number in range(count)
            ]
            return Deployment(started, postgres)

        yield {ONE: replicas(1), TWO: replicas(2), SQLITE: Deployment([sqlite])}, postgres.version()


def measure_round(samples: Samples, name: str, deployment: Deployment) -> None:
    """One round of the measurements of one deployment."""
    for kind in KINDS:
        for at_once in AT_ONCE:
            for what, value in deployment.cpu_of_load(kind, at_once).items():
                samples[f"{what} {kind} {at_once}", name].append(value)
        samples[f"first event {kind}", name].append(deployment.first_event(kind))


def rows(samples: Samples) -> list[Row]:
    """The rows of the table: Postgres, beside SQLite."""

    def row(label: str, what: str, name: str, unit: Unit = "s", *, is_compared: bool = True) -> Row:
        peers = {SQLITE: Measurement.from_samples(samples[what, SQLITE], unit)} if is_compared else {}
        return Row(f"{label}, {name}", Measurement.from_samples(samples[what, name], unit), peers)

    measured = [(kind, at_once, name) for kind in KINDS for at_once in AT_ONCE for name in (ONE, TWO)]
    return [
        *(row(f"CPU per request, {kind}, {n} concurrent", f"cpu {kind} {n}", name) for kind, n, name in measured),
        *(
            row(f"CPU of Postgres, {kind}, {n} concurrent", f"database {kind} {n}", name, is_compared=False)
            for kind, n, name in measured
            if kind == "stored"
        ),
        *(
            row(f"requests per second, {kind}, {n} concurrent", f"rate {kind} {n}", name, "/s")
            for kind, n, name in measured
        ),
        *(row(f"first event of a stream, {kind}", f"first event {kind}", ONE) for kind in KINDS),
    ]
