"""Server process with a full disk, a file size limit or a locked database: responses are 503, and it recovers.

The full disk is a small tmpfs in a mount namespace. Callers see the same errors for each fault.
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


def can_mount(directory: Path) -> bool:
    """Whether this machine allows mounting a tmpfs in a user namespace."""
    if shutil.which("unshare") is None:
        return False
    completed = subprocess.run([*SMALL_DISK, "true"], cwd=directory, capture_output=True, check=False)
    return completed.returncode == 0


def data_directory(server: Server) -> Path:
    """The data directory, in the mount namespace of the server."""
    return Path(f"/proc/{server.process.pid}/root") / (server.directory / ".antwort").relative_to("/")


@contextmanager
def full_disk(server: Server) -> Iterator[None]:
    """Fill the disk of the server."""
    filler = data_directory(server) / "filler"
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
def file_size_limit(server: Server) -> Iterator[None]:
    """Set RLIMIT_FSIZE of the server: no file can grow."""
    soft, hard = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        if server.process.poll() is None:
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def locked_database(server: Server) -> Iterator[None]:
    """Hold a write transaction on the database."""
    with closing(sqlite3.connect(server.directory / ".antwort" / "antwort.db", isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            database.execute("ROLLBACK")


Fault = Callable[[Server], AbstractContextManager[None]]
FAULTS: dict[str, Fault] = {"full": full_disk, "file size limit": file_size_limit, "locked": locked_database}


@pytest.fixture(params=FAULTS)
def faulty_server(request, tmp_path) -> Iterator[tuple[Server, Fault]]:
    directory = tmp_path / "server"
    (directory / ".antwort").mkdir(parents=True)
    command_prefix = SMALL_DISK if request.param == "full" else []
    if command_prefix and not can_mount(directory):
        pytest.skip("this machine does not allow mounting a tmpfs")
    with run_server(directory, command_prefix=command_prefix) as server:
        yield server, FAULTS[request.param]


def server_error(call: Callable[[], object]) -> openai.APIStatusError:
    with pytest.raises(openai.InternalServerError) as caught:
        call()
    return caught.value


def test_store_operations_are_503_during_the_fault_and_succeed_afterwards(faulty_server):
    server, fault = faulty_server
    content = b"x" * 2_000_000
    with server.client() as client:
        before = client.responses.create(input="before")
        store_calls = [
            lambda: client.responses.create(input="during"),
            lambda: client.responses.create(input="during", stream=True),
            lambda: client.responses.create(input="during", background=True),
            lambda: client.conversations.create(items=[{"type": "message", "role": "user", "content": "x" * 5000}]),
            lambda: client.files.create(file=("a.bin", content), purpose="user_data"),
        ]
        with fault(server), ThreadPoolExecutor(len(store_calls)) as pool:
            errors = list(pool.map(server_error, store_calls))
            read = client.responses.retrieve(before.id)
            stateless = client.responses.create(input="without", store=False)
        again = [call() for call in store_calls]
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
    stored = [path for path in (data_directory(server) / "blobs").iterdir() if path.name != "antwort-store"]
    assert [path.stat().st_size for path in stored] == [len(content)]


def test_a_response_that_finishes_during_the_fault_is_stored_later(faulty_server):
    server, fault = faulty_server
    with server.client() as client, server.http() as http:
        background = client.responses.create(input="slowly", background=True)
        stream = client.responses.create(input="slowly", stream=True)
        begun = next(iter(stream)).response
        with fault(server):
            with pytest.raises(openai.APIError) as caught:
                list(stream)
            waiting = client.responses.retrieve(begun.id)
        ended = [wait_until(lambda one=one: finished_response(client, one.id), 60) for one in (begun, background)]
        events = read_frames(http.get(f"/v1/responses/{background.id}", params={"stream": True}).content)

    assert caught.value.code == "unavailable"
    assert waiting.status == "in_progress"
    assert [response.status for response in ended] == ["completed", "completed"]
    assert all(response.output_text.startswith("word0 word1") for response in ended)
    check_stream(events, background=True)
    assert events[-1]["type"] == "response.completed"


def finished_response(client, identifier: str):
    response = client.responses.retrieve(identifier)
    return response if response.status not in ("queued", "in_progress") else None


def test_no_response_stays_in_progress_after_a_kill_during_the_fault(tmp_path):
    with run_server(tmp_path / "server") as server:
        with server.client() as client:
            completed = client.responses.create(input="before")
            background = client.responses.create(input="slowly", background=True)
            stream = client.responses.create(input="slowly", stream=True)
            begun = next(iter(stream)).response
            with file_size_limit(server):
                with pytest.raises(openai.APIError):
                    list(stream)
                server.kill()
        server.start()
        with server.client() as client:
            assert client.responses.retrieve(completed.id).output_text == "You said: before"
            assert client.responses.retrieve(begun.id).status == "failed"
            assert wait_until(lambda: finished_response(client, background.id)).status == "completed"


def test_a_spooled_upload_fails_with_503_too(tmp_path):
    body = multipart_body(("file", b"x" * 3_000_000, "a.bin"), ("purpose", b"user_data"))
    headers = {"content-type": "multipart/form-data; boundary=b"}
    with run_server(tmp_path / "server") as server, server.http() as http:
        with file_size_limit(server):
            rejected = http.post("/v1/files", content=body, headers=headers)
        accepted = http.post("/v1/files", content=body, headers=headers)

    assert (rejected.status_code, rejected.json()["error"]["code"]) == (503, "unavailable")
    assert (accepted.status_code, accepted.json()["bytes"]) == (200, 3_000_000)
