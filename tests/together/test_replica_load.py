"""Two replicas on one PostgreSQL under load, one of them killed and started again, or paused, periodically.

No response is lost, no tool call is executed twice, and nothing is left over. `make test-replicas` runs it for
`REPLICAS_SECONDS`, with a kill every `REPLICAS_KILL_EVERY` seconds, and prints a table. Every third time the replica is
paused instead, until the other one has taken its responses over: then it goes on, and has to find that out.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, LiteralString

import psycopg
import pytest
from fixtures_kubernetes import free_port
from fixtures_postgres import schema_url, started_postgres
from fixtures_replicas import replica_id, stopped
from fixtures_sandbox_server import SandboxProcess, sandbox_server
from fixtures_server import ROOT, Server, create_key, run_server
from replica_load import SCRIPT, SLOWLY, Ledger, run_clients
from waiting import wait_until

from antwort.containers.sandboxes.remote import LEASE_SECONDS

pytestmark = pytest.mark.replicas

SECONDS = float(os.environ.get("REPLICAS_SECONDS", "60"))
KILL_EVERY = float(os.environ.get("REPLICAS_KILL_EVERY", "15"))
PAUSE_EACH = 3
"""Every so many interruptions, the replica is paused and not killed."""
UNFINISHED: LiteralString = "status IN ('queued', 'in_progress')"
SETTLE_SECONDS = 90.0


@dataclass
class ReplicaPair:
    """Two replicas on one database, with one directory of blobs and the same keys."""

    servers: list[Server]
    database_url: str
    key: str
    counted: Path
    sandbox: SandboxProcess
    orphaned_sessions: set[str] = field(default_factory=set[str])
    """Sandboxes at the time of a kill or pause: those of that replica end with their lease."""
    takeovers: list[float] = field(default_factory=list[float])
    """Seconds from the death or the pause of a replica until another one had each of its unfinished responses."""

    def query(self, statement: LiteralString) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            return connection.execute(statement).fetchall()

    def unfinished_of(self, replica: str) -> set[str]:
        rows = self.query(f"SELECT id, replica FROM responses WHERE {UNFINISHED}")  # noqa: S608 - a constant condition
        return {identifier for identifier, owner in rows if owner == replica}

    def kill_and_restart(self, number: int) -> None:
        """Kill a replica; while it starts again, measure when its responses were taken over."""
        server = self.servers[number]
        replica = replica_id(server)
        server.kill()
        killed_at = time.monotonic()
        self.orphaned_sessions |= {session["id"] for session in self.sandbox.sessions()}
        watching = threading.Thread(target=self._watch_takeovers, args=(replica, killed_at))
        watching.start()
        server.start()
        watching.join()

    def pause(self, number: int) -> None:
        """Pause a replica until the other one has removed it, and taken its responses over."""
        server = self.servers[number]
        replica = replica_id(server)
        with stopped(server):
            paused_at = time.monotonic()
            self.orphaned_sessions |= {session["id"] for session in self.sandbox.sessions()}
            self._watch_takeovers(replica, paused_at)
            wait_until(lambda: (replica,) not in self.query("SELECT id FROM replicas"), SETTLE_SECONDS)

    def _watch_takeovers(self, replica: str, since: float) -> None:
        left = self.unfinished_of(replica)

        def all_taken_over() -> bool:
            taken = left - self.unfinished_of(replica)
            self.takeovers.extend([time.monotonic() - since] * len(taken))
            left.difference_update(taken)
            return not left

        wait_until(all_taken_over, SETTLE_SECONDS, interval=0.05)


@contextmanager
def replica_pair(directory: Path) -> Iterator[ReplicaPair]:
    """Two replicas on fixed ports, so that they have the same address after a restart."""
    with ExitStack() as running:
        url = schema_url(running.enter_context(started_postgres()), directory)
        sandbox = running.enter_context(sandbox_server(directory))
        key = create_key(directory, "load", "--concurrent-responses", "100")
        shared = {
            "storage": {"url": url, "blobs": str(directory / "blobs")},
            "auth": {"keys_file": str(directory / "keys.json")},
            "compaction": {"keys_file": str(directory / "sealing-keys.json")},
            "providers": {
                "code_interpreter": {"enabled": True, "sandbox_url": sandbox.url, "sandbox_token_env": "SANDBOX_KEY"}
            },
        }
        environment = {"COUNTED_FILE": str(directory / "counted"), "SANDBOX_KEY": sandbox.token}
        ports = {name: free_port() for name in ("a", "b")}
        servers = [
            running.enter_context(
                run_server(
                    directory / name,
                    {**shared, "server": {"port": port, "replica_url": f"http://127.0.0.1:{port}"}},
                    environment=environment,
                    script=SCRIPT,
                    program=ROOT / "tests" / "support" / "fake_counting_provider.py",
                )
            )
            for name, port in ports.items()
        ]
        yield ReplicaPair(servers, url, key, directory / "counted", sandbox)


def test_replicas_that_are_killed_or_paused_under_load_lose_no_response_and_repeat_no_call(tmp_path):
    assert SECONDS > PAUSE_EACH * KILL_EVERY, "no replica would be paused: run it for longer, or kill more often"
    ledger, is_over = Ledger(), threading.Event()
    with replica_pair(tmp_path) as pair:
        threads = run_clients([server.url for server in pair.servers], pair.key, ledger, is_over)
        try:
            begin, kills, pauses = time.monotonic(), 0, 0
            while (at := (kills + pauses + 1) * KILL_EVERY) < SECONDS:
                is_over.wait(max(0.0, begin + at - time.monotonic()))
                number = (kills + pauses) % 2
                if (kills + pauses + 1) % PAUSE_EACH:
                    pair.kill_and_restart(number)
                    kills += 1
                else:
                    pair.pause(number)
                    pauses += 1
            is_over.wait(max(0.0, begin + SECONDS - time.monotonic()))
        finally:
            is_over.set()
            for thread in threads:
                thread.join(SETTLE_SECONDS)
        assert not any(thread.is_alive() for thread in threads)
        wait_until(lambda: not pair.query(f"SELECT 1 FROM responses WHERE {UNFINISHED}"), SETTLE_SECONDS)  # noqa: S608 - a constant condition
        executions = read_executions(pair.counted)
        print(table(pair, ledger, executions, kills, pauses))  # noqa: T201 - the result of the run, beside its assertions

        assert ledger.unexpected == []
        check_ledger(pair, ledger, executions)
        check_leftovers(pair)
        for server in pair.servers:
            assert server.stop() == 0
        assert pair.query("SELECT id FROM replicas") == []
    assert min(map(len, (ledger.texts, ledger.background, ledger.files, ledger.conversations, executions))) > 0


# ── checks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_executions(counted: Path) -> dict[str, Counter[str]]:
    """How often each call has begun and ended, by its query."""
    executions: dict[str, Counter[str]] = {}
    for line in counted.read_text(encoding="utf-8").splitlines():
        step, _, query = line.partition(" ")
        executions.setdefault(query, Counter())[step] += 1
    return executions


def check_ledger(pair: ReplicaPair, ledger: Ledger, executions: dict[str, Counter[str]]) -> None:
    """Everything that a server has acknowledged is there, at both replicas in turn; no call was executed twice."""
    assert [query for query, steps in executions.items() if steps["begun"] > 1 or steps["ended"] > 1] == []
    assert {query.rpartition(" ")[0] for query in executions} <= ledger.queries
    with ExitStack() as clients:
        sdks = [clients.enter_context(server.client(pair.key)) for server in pair.servers]
        options = {"headers": {"authorization": f"Bearer {pair.key}"}}
        https = [clients.enter_context(server.http(**options)) for server in pair.servers]
        for number, (identifier, text) in enumerate((ledger.texts | ledger.background).items()):
            response = sdks[number % 2].responses.retrieve(identifier)
            assert (response.status, response.output_text) == ("completed", text), identifier
            check_calls(response, executions)
        for number, identifier in enumerate(ledger.background):
            check_replay(https[number % 2], identifier)
        for number, (identifier, text) in enumerate(ledger.begun.items()):
            response = sdks[number % 2].responses.retrieve(identifier)
            assert response.status in ("failed", "completed"), identifier
            if response.status == "completed":
                assert response.output_text == text
            else:
                assert response.error.code == "server_error"
        for number, identifier in enumerate(ledger.deleted):
            assert https[number % 2].get(f"/v1/responses/{identifier}").status_code == 404
        for number, (identifier, content) in enumerate(ledger.files.items()):
            assert sdks[number % 2].files.content(identifier).read() == content
        for number, (identifier, texts) in enumerate(ledger.conversations.items()):
            items = sdks[number % 2].conversations.items.list(identifier, order="asc", limit=100)
            found = [item.content[0].text for item in items]
            assert all(answer == f"You said: {text}" for text, answer in zip(found[::2], found[1::2], strict=True))
            rest = iter(found)
            assert all(text in rest for text in texts), "the acknowledged items are there, in their order"


def check_calls(response: Any, executions: dict[str, Counter[str]]) -> None:
    """A completed call was executed once, from its begin to its end."""
    calls = [item for item in response.output if item.type == "file_search_call"]
    assert response.output_text == SLOWLY or len(calls) == 2 * response.output_text.startswith("counted ")
    for call in calls:
        if call.status == "completed":
            assert executions[call.queries[0]] == {"begun": 1, "ended": 1}


def check_replay(http: Any, identifier: str) -> None:
    """The stored events of a background response: increasing numbers, and one final event at the end."""
    lines = http.get(f"/v1/responses/{identifier}", params={"stream": "true"}).text.splitlines()
    kinds = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    numbers = [int(number) for line in lines for number in re.findall(r'"sequence_number":(\d+)', line)[-1:]]
    assert numbers == sorted(set(numbers))
    assert kinds[0] == "response.created"
    assert [at for at, kind in enumerate(kinds, 1) if kind == "response.completed"] == [len(kinds)]
    assert kinds.count("response.created") == 1


def check_leftovers(pair: ReplicaPair) -> None:
    """Two replicas; they have no slots, checkpoints and sandboxes of running responses left."""
    wait_until(lambda: len(pair.query("SELECT id FROM replicas")) == 2)
    wait_until(lambda: not pair.query("SELECT 1 FROM running_slots WHERE replica IN (SELECT id FROM replicas)"))
    assert pair.query("SELECT 1 FROM checkpoint_steps") == []
    assert pair.query("SELECT id FROM containers WHERE sandbox IS NOT NULL") == []
    wait_until(lambda: {session["id"] for session in pair.sandbox.sessions()} <= pair.orphaned_sessions)
    if SECONDS > LEASE_SECONDS:
        wait_until(lambda: not pair.sandbox.sessions(), LEASE_SECONDS + SETTLE_SECONDS)


# ── table ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def table(pair: ReplicaPair, ledger: Ledger, executions: dict[str, Counter[str]], kills: int, pauses: int) -> str:
    """The figures of the run, in Markdown."""
    statuses = pair.query("SELECT status, count(*) FROM responses GROUP BY status ORDER BY status")
    begun, ended = (sum(steps[step] for steps in executions.values()) for step in ("begun", "ended"))
    delays = sorted(pair.takeovers) or [0.0]
    rows = {
        "duration, kills, pauses": f"{SECONDS:g} s, {kills}, {pauses}",
        "requests": f"{sum(ledger.requests.values())} ({listed(ledger.requests)})",
        "failed requests, repeated at the other replica": listed(ledger.failures),
        "responses by status": listed(dict(statuses)),
        "responses taken over": f"{len(pair.takeovers)}",
        "delay of the take-over, p50 and maximum": f"{median(delays):.1f} s, {delays[-1]:.1f} s",
        "background streams resumed at the other replica": f"{ledger.resumed_streams}",
        "tool calls executed, interrupted, executed twice": f"{begun}, {begun - ended}, "
        f"{sum(steps['begun'] > 1 for steps in executions.values())}",
    }
    return "\n".join(["", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"
