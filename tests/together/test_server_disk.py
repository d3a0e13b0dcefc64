"""The real process when its disk does not take any more, or somebody else holds its database: 503, and it recovers.

A disk that is really full (a small one, in a mount namespace), files that may not grow, and
a lock: whatever the fault is, callers see the same.
"""

from __future__ import annotations

import resource
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import openai
import pytest
from fixtures_in_process_server import multipart_body
from fixtures_server import Server, run_server
from stream_grammar import check_stream, read_frames
from waiting import wait_until

SMALL_DISK = ["unshare", "-Urm", "sh", "-c", 'mount -t tmpfs -o size=8m tmpfs "$PWD/.antwort" && exec "$@"', "sh"]


def can_mount(place: Path) -> bool:
    """Whether this machine lets us make a disk of our own."""
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run([*SMALL_DISK, "true"], cwd=place, capture_output=True, check=False)
    return tried.returncode == 0


def kept_in(server: Server) -> Path:
    """Where the server keeps things, as it sees it itself."""
    return Path(f"/proc/{server.process.pid}/root") / (server.directory / ".antwort").relative_to("/")


@contextmanager
def full(server: Server) -> Iterator[None]:
    """Not a byte is left on its disk."""
    filler = kept_in(server) / "filler"
    with filler.open("wb", buffering=0) as file:
        size = 1024 * 1024
        while size:
            try:
                file.write(b"\0" * size)
            except OSError:
                size //= 2
    try:
        yield
    finally:
        filler.unlink()


@contextmanager
def not_growing(server: Server) -> Iterator[None]:
    """No file of its may grow."""
    soft, hard = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        if server.process.poll() is None:
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def locked(server: Server) -> Iterator[None]:
    """Somebody else writes, and does not come to an end."""
    with closing(sqlite3.connect(server.directory / ".antwort" / "antwort.db", isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            database.execute("ROLLBACK")


Fault = Callable[[Server], AbstractContextManager[None]]
FAULTS: dict[str, Fault] = {"full": full, "not growing": not_growing, "locked": locked}


@pytest.fixture(params=FAULTS)
def stage(request, tmp_path) -> Iterator[tuple[Server, Fault]]:
    place = tmp_path / "server"
    (place / ".antwort").mkdir(parents=True)
    before = SMALL_DISK if request.param == "full" else []
    if before and not can_mount(place):
        pytest.skip("this machine does not let us make a small disk")
    with run_server(place, before=before) as server:
        yield server, FAULTS[request.param]


def refused(ask: Callable[[], object]) -> openai.APIStatusError:
    with pytest.raises(openai.InternalServerError) as caught:
        ask()
    return caught.value


def test_what_needs_the_store_answers_503_and_then_works_again(stage):
    server, fault = stage
    content = b"x" * 2_000_000
    with server.client() as client:
        before = client.responses.create(input="before")
        needs_the_store = [
            lambda: client.responses.create(input="meanwhile"),
            lambda: client.responses.create(input="meanwhile", stream=True),
            lambda: client.responses.create(input="meanwhile", background=True),
            lambda: client.conversations.create(items=[{"type": "message", "role": "user", "content": "x" * 5000}]),
            lambda: client.files.create(file=("a.bin", content), purpose="user_data"),
        ]
        with fault(server), ThreadPoolExecutor(len(needs_the_store)) as pool:
            errors = list(pool.map(refused, needs_the_store))
            read = client.responses.retrieve(before.id)
            stateless = client.responses.create(input="without", store=False)
        again = [ask() for ask in needs_the_store]
        again[1].close()

        for error in errors:
            assert error.status_code == 503
            assert (error.type, error.code) == ("server_error", "unavailable")
            assert int(error.response.headers["retry-after"]) >= 1
            assert str(error.request_id).startswith("req_")
        assert read.to_dict() == before.to_dict()
        assert stateless.output_text == "You said: without"
        assert again[0].status == "completed"
        assert client.files.content(again[-1].id).read() == content
        assert [file.id for file in client.files.list()] == [again[-1].id]
    assert [path.stat().st_size for path in (kept_in(server) / "blobs").iterdir()] == [len(content)]


def test_what_ends_meanwhile_is_written_later(stage):
    server, fault = stage
    with server.client() as client, server.http() as http:
        background = client.responses.create(input="slowly", background=True)
        stream = client.responses.create(input="slowly", stream=True)
        begun = next(iter(stream)).response
        with fault(server):
            with pytest.raises(openai.APIError) as caught:
                list(stream)
            waiting = client.responses.retrieve(begun.id)
        ended = [wait_until(lambda one=one: ended_as(client, one.id), 60) for one in (begun, background)]
        events = read_frames(http.get(f"/v1/responses/{background.id}", params={"stream": True}).content)

    assert caught.value.code == "unavailable"
    assert waiting.status == "in_progress"
    assert [response.status for response in ended] == ["completed", "completed"]
    assert all(response.output_text.startswith("word0 word1") for response in ended)
    check_stream(events, background=True)
    assert events[-1]["type"] == "response.completed"


def ended_as(client, identifier: str):
    response = client.responses.retrieve(identifier)
    return response if response.status not in ("queued", "in_progress") else None


def test_killed_meanwhile_nothing_is_stuck_afterwards(tmp_path):
    with run_server(tmp_path / "server") as server:
        with server.client() as client:
            whole = client.responses.create(input="before")
            background = client.responses.create(input="slowly", background=True)
            stream = client.responses.create(input="slowly", stream=True)
            begun = next(iter(stream)).response
            with not_growing(server):
                with pytest.raises(openai.APIError):
                    list(stream)
                server.kill()
        server.start()
        with server.client() as client:
            assert client.responses.retrieve(whole.id).output_text == "You said: before"
            assert client.responses.retrieve(begun.id).status == "failed"
            assert wait_until(lambda: ended_as(client, background.id)).status == "completed"


def test_a_form_whose_fields_come_last_has_no_room_either(tmp_path):
    body = multipart_body(("file", b"x" * 3_000_000, "a.bin"), ("purpose", b"user_data"))
    kind = {"content-type": "multipart/form-data; boundary=b"}
    with run_server(tmp_path / "server") as server, server.http() as http:
        with not_growing(server):
            refused = http.post("/v1/files", content=body, headers=kind)
        taken = http.post("/v1/files", content=body, headers=kind)

    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
    assert (taken.status_code, taken.json()["bytes"]) == (200, 3_000_000)
