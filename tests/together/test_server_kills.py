"""The real process, killed at random moments while callers of every kind are busy: nothing lost, nothing stuck.

Whatever a caller was told is remembered, and must be so after every start that follows.
A few rounds by default; `make test-faults` takes many (`KILLS`), and `KILLS_SEED` other
moments.
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
class Told:
    """What callers were told, by id. Threads only ever add to it."""

    answers: dict[str, str] = field(default_factory=dict[str, str])
    begun: set[str] = field(default_factory=set[str])
    background: set[str] = field(default_factory=set[str])
    deleted: set[str] = field(default_factory=set[str])
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    conversations: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def count(self) -> int:
        kept = (self.answers, self.begun, self.background, self.deleted, self.files, self.conversations)
        return sum(map(len, kept))


# ── callers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def ask(client: Any, told: Told, number: int) -> None:
    response = client.responses.create(input=f"number {number}")
    told.answers[response.id] = f"You said: number {number}"


def stream(client: Any, told: Told, number: int) -> None:
    text, options = ("search", {"tools": [SEARCH]}) if number % 2 else ("slowly", {})
    with client.responses.create(input=text, stream=True, **options) as events:
        for event in events:
            if event.type == "response.created":
                told.begun.add(event.response.id)
            elif event.type == "response.completed":
                told.answers[event.response.id] = event.response.output_text


def leave_alone(client: Any, told: Told, number: int) -> None:
    told.background.add(client.responses.create(input="slowly", background=True).id)
    time.sleep(0.02)


def converse(client: Any, told: Told, number: int) -> None:
    conversation = client.conversations.create().id
    told.conversations[conversation] = []
    for turn in range(3):
        response = client.responses.create(input=f"turn {turn}", conversation=conversation)
        told.conversations[conversation] += [f"turn {turn}", response.output_text]


def upload(client: Any, told: Told, number: int) -> None:
    content = os.urandom(50_000)
    told.files[client.files.create(file=("a.bin", content), purpose="user_data").id] = content


def forget(client: Any, told: Told, number: int) -> None:
    response = client.responses.create(input="forget me")
    client.responses.delete(response.id)
    told.deleted.add(response.id)


CALLERS = (ask, stream, leave_alone, converse, upload, forget)


def keep_busy(
    server: Server, caller: Callable[[Any, Told, int], None], told: Told, all_here: threading.Barrier
) -> None:
    """Until the server is gone: what breaks off was never told, so it may be lost."""
    with server.client() as client:
        client.models.list()  # the first request takes long, for reasons of the SDK's own
        all_here.wait(30)
        with suppress(openai.APIError, httpx2.HTTPError):
            for number in count():
                caller(client, told, number)


def kill_at_work(server: Server, told: Told, enough: int, after: float) -> None:
    """Kill it when callers have been told enough things, and a moment has passed."""
    all_here = threading.Barrier(len(CALLERS) + 1)
    busy = [threading.Thread(target=keep_busy, args=(server, caller, told, all_here)) for caller in CALLERS]
    for thread in busy:
        thread.start()
    all_here.wait(30)
    wait_until(lambda: told.count() >= enough, 30, interval=0.001)
    time.sleep(after)
    server.kill()
    for thread in busy:
        thread.join(30)
        assert not thread.is_alive()


# ── what must be so afterwards ───────────────────────────────────────────────────────────────────────────────────────


def check_database(server: Server) -> None:
    """Sound, nothing in progress but what is done again, and no content without a record."""
    with closing(sqlite3.connect(server.directory / ".antwort" / "antwort.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert database.execute("PRAGMA foreign_key_check").fetchall() == []
        unfinished = database.execute("SELECT body FROM responses WHERE status IN ('queued', 'in_progress')").fetchall()
        recorded = {name for (name,) in database.execute("SELECT blob FROM files")}
    assert all(b'"background":true' in body for (body,) in unfinished)
    assert {path.name for path in (server.directory / ".antwort" / "blobs").iterdir()} == recorded


def check_told(server: Server, told: Told) -> None:
    """Everything that anybody was told."""
    with server.client() as client, server.http() as http:
        for identifier, text in told.answers.items():
            assert client.responses.retrieve(identifier).output_text == text
        for identifier in told.begun - set(told.answers):
            response = client.responses.retrieve(identifier)
            assert response.status in ("failed", "completed")  # ended while the caller could no longer be told
            assert response.status == "completed" or response.error.code == "server_error"
        for identifier in told.deleted:
            assert http.get(f"/v1/responses/{identifier}").status_code == 404
        for identifier, content in told.files.items():
            assert client.files.content(identifier).read() == content
        for identifier, texts in told.conversations.items():
            said = [item.content[0].text for item in client.conversations.items.list(identifier, order="asc")]
            assert said[: len(texts)] == texts
            assert said == [
                part for turn in range(len(said) // 2) for part in (f"turn {turn}", f"You said: turn {turn}")
            ]
        for identifier in told.background:
            wait_until(lambda one=identifier: client.responses.retrieve(one).status == "completed", 30)
            assert client.responses.retrieve(identifier).output_text == SLOWLY
            events = read_frames(http.get(f"/v1/responses/{identifier}", params={"stream": True}).content)
            check_stream(events, background=True)
        if told.answers:
            last = next(reversed(told.answers))
            assert client.responses.create(input="go on", previous_response_id=last).status == "completed"


def test_killed_at_any_moment_nothing_is_lost_and_nothing_is_stuck(tmp_path):
    chance = random.Random(SEED)  # noqa: S311 - moments to kill at, not secrets
    program = ROOT / "tests" / "stages" / "fake_echo_provider.py"
    everything = Told()
    with run_server(tmp_path / "server", script=SCRIPT, program=program) as server:
        for _ in range(ROUNDS):
            told = Told()
            kill_at_work(server, told, chance.randint(0, 40), chance.uniform(0.0, 0.05))
            if chance.random() < 0.25:
                server.start_and_kill(chance.uniform(0.0, 0.6))  # also while it cleans up behind the one before
            server.start()
            check_database(server)
            check_told(server, told)
            for name in vars(told):
                getattr(everything, name).update(getattr(told, name))
        check_told(server, everything)
        server.stop()
        check_database(server)
    assert min(map(len, vars(everything).values())) > 0
