"""SIGKILL of the server process at random moments under load: no acknowledged data is lost, no response is stuck.

Clients record every acknowledged result; after each restart all of them are checked. Few rounds by default;
`make test-faults` sets more (`KILLS`), and `KILLS_SEED` other moments.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx2
import openai
from fixtures_server import ROOT, Server, run_server
from stream_grammar import check_stream, read_frames
from waiting import wait_until

ROUNDS = int(os.environ.get("KILLS", "4"))
SEED = int(os.environ.get("KILLS_SEED", "7"))

SEARCH = {"type": "file_search", "vector_store_ids": ["vs_1"]}
SCRIPT = {
    "fragment": 4,
    "answers": [
        {
            "when": {"text": "slowly"},
            "reply": [step for word in range(6) for step in ({"text": f"word{word} "}, {"delay": 0.03})],
        },
        {
            "when": {"text": "search", "turn": 1},
            "reply": [{"call": {"name": "file_search", "arguments": {"query": "apples"}}}],
        },
        {"reply": [{"delay": 0.01}, {"text": "You said: <<text>>"}]},
    ],
}
SLOWLY = "word0 word1 word2 word3 word4 word5 "


@dataclass
class Acknowledged:
    """Acknowledged results by id. Threads only add to it."""

    answers: dict[str, str] = field(default_factory=dict[str, str])
    begun: set[str] = field(default_factory=set[str])
    background: set[str] = field(default_factory=set[str])
    deleted: set[str] = field(default_factory=set[str])
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    conversations: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def count(self) -> int:
        results = (self.answers, self.begun, self.background, self.deleted, self.files, self.conversations)
        return sum(map(len, results))


# ── clients ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def create(client: Any, acknowledged: Acknowledged, number: int) -> None:
    response = client.responses.create(input=f"number {number}")
    acknowledged.answers[response.id] = f"You said: number {number}"


def stream(client: Any, acknowledged: Acknowledged, number: int) -> None:
    text, options = ("search", {"tools": [SEARCH]}) if number % 2 else ("slowly", {})
    with client.responses.create(input=text, stream=True, **options) as events:
        for event in events:
            if event.type == "response.created":
                acknowledged.begun.add(event.response.id)
            elif event.type == "response.completed":
                acknowledged.answers[event.response.id] = event.response.output_text


def create_background(client: Any, acknowledged: Acknowledged, number: int) -> None:
    acknowledged.background.add(client.responses.create(input="slowly", background=True).id)
    time.sleep(0.02)


def converse(client: Any, acknowledged: Acknowledged, number: int) -> None:
    conversation = client.conversations.create().id
    acknowledged.conversations[conversation] = []
    for turn in range(3):
        response = client.responses.create(input=f"turn {turn}", conversation=conversation)
        acknowledged.conversations[conversation] += [f"turn {turn}", response.output_text]


def upload(client: Any, acknowledged: Acknowledged, number: int) -> None:
    content = os.urandom(50_000)
    acknowledged.files[client.files.create(file=("a.bin", content), purpose="user_data").id] = content


def delete(client: Any, acknowledged: Acknowledged, number: int) -> None:
    response = client.responses.create(input="delete me")
    client.responses.delete(response.id)
    acknowledged.deleted.add(response.id)


CLIENTS = (create, stream, create_background, converse, upload, delete)


def send_requests(
    server: Server,
    send: Callable[[Any, Acknowledged, int], None],
    acknowledged: Acknowledged,
    barrier: threading.Barrier,
) -> None:
    """Send requests until the server is gone. An aborted request is not acknowledged, so it may be lost."""
    with server.client() as client:
        client.models.list()  # the first request of the SDK is slow
        barrier.wait(30)
        with suppress(openai.APIError, httpx2.HTTPError):
            for number in count():
                send(client, acknowledged, number)


def kill_under_load(server: Server, acknowledged: Acknowledged, results: int, delay: float) -> None:
    """Kill the server after a number of acknowledged results and a delay."""
    barrier = threading.Barrier(len(CLIENTS) + 1)
    threads = [threading.Thread(target=send_requests, args=(server, send, acknowledged, barrier)) for send in CLIENTS]
    for thread in threads:
        thread.start()
    barrier.wait(30)
    wait_until(lambda: acknowledged.count() >= results, 30, interval=0.001)
    time.sleep(delay)
    server.kill()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


# ── checks after the restart ─────────────────────────────────────────────────────────────────────────────────────────


def check_database(server: Server) -> None:
    """Integrity, only background responses in progress, and soon no blob without a record."""
    with closing(sqlite3.connect(server.directory / ".antwort" / "antwort.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert database.execute("PRAGMA foreign_key_check").fetchall() == []
        unfinished = database.execute("SELECT body FROM responses WHERE status IN ('queued', 'in_progress')").fetchall()
        recorded = {name for (name,) in database.execute("SELECT blob FROM files")}
    assert all(b'"background":true' in body for (body,) in unfinished)
    blobs = server.directory / ".antwort" / "blobs"
    wait_until(lambda: {path.name for path in blobs.iterdir()} - {"antwort-store"} == recorded)


def check_acknowledged(server: Server, acknowledged: Acknowledged) -> None:
    """Check every acknowledged result."""
    with server.client() as client, server.http() as http:
        for identifier, text in acknowledged.answers.items():
            assert client.responses.retrieve(identifier).output_text == text
        for identifier in acknowledged.begun - set(acknowledged.answers):
            response = client.responses.retrieve(identifier)
            assert response.status in ("failed", "completed")  # it may have completed without being acknowledged
            assert response.status == "completed" or response.error.code == "server_error"
        for identifier in acknowledged.deleted:
            assert http.get(f"/v1/responses/{identifier}").status_code == 404
        for identifier, content in acknowledged.files.items():
            assert client.files.content(identifier).read() == content
        for identifier, texts in acknowledged.conversations.items():
            found = [item.content[0].text for item in client.conversations.items.list(identifier, order="asc")]
            assert found[: len(texts)] == texts
            assert found == [
                part for turn in range(len(found) // 2) for part in (f"turn {turn}", f"You said: turn {turn}")
            ]
        for identifier in acknowledged.background:
            wait_until(lambda one=identifier: client.responses.retrieve(one).status == "completed", 30)
            assert client.responses.retrieve(identifier).output_text == SLOWLY
            events = read_frames(http.get(f"/v1/responses/{identifier}", params={"stream": True}).content)
            check_stream(events, background=True, is_continued=True)
        if acknowledged.answers:
            last = next(reversed(acknowledged.answers))
            assert client.responses.create(input="go on", previous_response_id=last).status == "completed"


def test_sigkill_loses_no_acknowledged_data_and_leaves_no_response_stuck(tmp_path):
    rng = random.Random(SEED)  # noqa: S311 - not cryptographic
    program = ROOT / "tests" / "support" / "fake_echo_provider.py"
    total = Acknowledged()
    with run_server(tmp_path / "server", script=SCRIPT, program=program) as server:
        for _ in range(ROUNDS):
            acknowledged = Acknowledged()
            kill_under_load(server, acknowledged, rng.randint(0, 40), rng.uniform(0.0, 0.05))
            if rng.random() < 0.25:
                server.start_and_kill(rng.uniform(0.0, 0.6))  # also during recovery
            server.start()
            check_database(server)
            check_acknowledged(server, acknowledged)
            for name in vars(acknowledged):
                getattr(total, name).update(getattr(acknowledged, name))
        check_acknowledged(server, total)
        server.stop()
        check_database(server)
    assert min(map(len, vars(total).values())) > 0
