"""Fault injection for containers: killed processes, full disks, locked databases; nothing hangs or is left behind."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import openai
import pytest
from fixtures_code_interpreter import LOCAL_FIRST, descendants, is_running
from fixtures_container_server import container_server, execute, files, read
from fixtures_sandbox_server import sandbox_server
from waiting import wait_until

FAST = {"server": {"keep_alive": 0.2, "shutdown_timeout": 3}}
FOREVER = "print('begun', flush=True)\nwhile True: pass"


@pytest.fixture(params=LOCAL_FIRST)
def broken(request, tmp_path):
    """A server of its own, for a test that breaks something."""
    with container_server(request.param, tmp_path, FAST) as running:
        yield running


@pytest.fixture(scope="module", params=LOCAL_FIRST)
def survivor(request, tmp_path_factory):
    with container_server(request.param, tmp_path_factory.mktemp(request.param), FAST) as running:
        yield running


@pytest.fixture
def shaken(survivor):
    """A server that several fault tests share."""
    yield survivor
    with survivor.server.client() as client:
        for container in client.containers.list(limit=100):
            client.containers.delete(container.id)


@contextmanager
def running_code(server, container_id, code=FOREVER):
    """Start an execution; the lines of its event stream, of which the first has arrived."""
    body = {"code": code, "stream": True}
    with server.http() as http, http.stream("POST", f"/v1/containers/{container_id}/exec", json=body) as stream:
        lines = (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: "))
        assert next(lines)["text"] == "begun\n"
        yield lines


# ── killed sandbox ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "code",
    ["import os; os.kill(os.getpid(), 9)", "import os; os._exit(3)", "x = [bytearray(64 << 20) for _ in range(64)]"],
)
def test_an_interpreter_that_exits_is_replaced_and_reported(client, container, code):
    client.containers.files.create(container.id, file=("a.txt", b"x"))
    ended = execute(client, container.id, code)
    if ended["status"] == "error":
        pytest.skip("memory is limited by the process here, and Python raises MemoryError")
    found = client.containers.retrieve(container.id)
    after = execute(client, container.id, "import os; os.listdir()")

    assert ended["status"] in ("ended", "oom")
    assert ended["lost"]
    assert found.status == "running"
    assert "lost" in found.to_dict()["antwort:lost"]
    assert (after["replaced"], after["result"]) == (True, "[]")
    assert files(client, container.id) == {}
    assert execute(client, container.id, "1")["replaced"] is False


def test_sandbox_server_killed_during_a_call(broken):
    with broken.server.client() as client:
        container, idle = client.containers.create(name="x"), client.containers.create(name="y")
        execute(client, idle.id, "y = 1")
        with running_code(broken.server, container.id) as lines:
            below = descendants(broken.sandbox_pid())
            os.kill(broken.sandbox_pid(), signal.SIGKILL)
            last = list(lines)[-1]
        assert last["type"] == "error"
        assert last["error"]["code"] in ("container_lost", "unavailable")
        wait_until(lambda: not any(map(is_running, below)))
        if broken.sandbox is not None:
            with pytest.raises(openai.InternalServerError) as error:
                execute(client, container.id, "1")
            assert error.value.response.headers["x-should-retry"] == "false"
            broken.sandbox.kill()  # it is dead, and now it is waited for too
            broken.sandbox.start()
        lost = (container,) if broken.server.cluster is not None else (container, idle)  # a pod has one container
        for one in lost:
            ran = execute(client, one.id, "1 + 1")
            assert (ran["replaced"], ran["result"]) == (True, "2")
            assert "antwort:lost" in client.containers.retrieve(one.id).to_dict()


def test_an_unreachable_sandbox_server_does_not_hang(tmp_path):
    with sandbox_server(tmp_path) as sandbox:
        url = sandbox.url
    config = {"providers": {"code_interpreter": {"enabled": True, "sandbox_url": url, "claim_timeout": 2}}}
    with container_server("local", tmp_path / "server", config) as running, running.server.client() as client:
        upload = client.files.create(file=("a", b"x"), purpose="user_data")
        container = client.containers.create(name="x")
        for attempt in (
            lambda: execute(client, container.id, "1"),
            lambda: client.containers.files.create(container.id, file=("a", b"x")),
            lambda: client.containers.create(name="y", file_ids=[upload.id]),
        ):
            with pytest.raises(openai.InternalServerError) as error:
                attempt()
            assert (error.value.status_code, error.value.code) == (503, "unavailable")
        assert [one.id for one in client.containers.list()] == [container.id]


# ── killed server ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_server_killed_during_a_call(broken):
    with broken.server.client() as client:
        container, unused = client.containers.create(name="x"), client.containers.create(name="y")
        client.containers.files.create(container.id, file=("a.txt", b"x"))
        with running_code(broken.server, container.id):
            below = descendants(broken.server.process.pid)
            broken.server.kill()
    wait_until(lambda: not any(map(is_running, below)))
    assert bool(below) == broken.has_local_sandboxes
    broken.server.start()
    with broken.server.client() as client:
        found = client.containers.retrieve(container.id)
        assert found.status == "running"
        assert found.to_dict()["antwort:lost"].startswith("The server was restarted.")
        assert "antwort:lost" not in client.containers.retrieve(unused.id).to_dict()
        assert files(client, container.id) == {}
        ran = execute(client, container.id, "import os; os.listdir()")
        assert (ran["replaced"], ran["result"]) == (True, "[]")


def test_a_stopped_server_leaves_no_processes(broken):
    with broken.server.client() as client:
        for _ in range(3):
            execute(client, client.containers.create(name="x").id, "1")
        if broken.sandbox is not None:
            assert len(broken.sandbox.sessions()) == 3
        below = descendants(broken.server.process.pid)
        with running_code(broken.server, client.containers.create(name="y").id):
            assert broken.server.stop() == 0
    assert not any(map(is_running, below))
    if broken.sandbox is not None:
        assert broken.sandbox.sessions() == []


# ── full disk and locked database ─────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def full_disk(pid: int):
    """Limit the file size of a process to simulate a full disk."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (512, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_reported_and_recovers(shaken):
    server = shaken.server
    with server.client() as client:
        container = client.containers.create(name="x")
        execute(client, container.id, "x = 1")
        below = shaken.sandbox_processes()
        with full_disk(server.process.pid):
            for attempt in (
                lambda: client.containers.create(name="y"),
                lambda: execute(client, container.id, "x"),
                lambda: client.containers.files.create(container.id, file=("a", b"x")),
                lambda: client.containers.delete(container.id),
            ):
                with pytest.raises(openai.InternalServerError) as error:
                    attempt()
                assert error.value.status_code == 503
        assert execute(client, container.id, "x")["result"] == "1"
        assert [one.id for one in client.containers.list()] == [container.id]
        assert shaken.sandbox_processes() <= below + 1  # one may be forked ahead


def test_a_disk_that_fills_up_during_an_execution(shaken):
    server = shaken.server
    code = "import time\nprint('begun', flush=True)\nopen('made', 'w').write('x')\ntime.sleep(1)"
    with server.client() as client:
        container = client.containers.create(name="x")
        with running_code(server, container.id, code) as lines, full_disk(server.process.pid):
            last = list(lines)[-1]
        assert (last["type"], last["error"]["code"]) == ("error", "unavailable")
        (file,) = files(client, container.id).values()
        assert read(client, container.id, file.id) == b"x"


def test_a_locked_database_is_reported_and_recovers(shaken):
    with shaken.server.client() as client:
        container = client.containers.create(name="x")
        path = shaken.server.directory / ".antwort" / "antwort.db"
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            with pytest.raises(openai.InternalServerError):
                client.containers.create(name="y")
            database.execute("ROLLBACK")
        assert execute(client, container.id, "1")["result"] == "1"


def test_an_upload_to_a_full_container_keeps_the_old_file(shaken):
    with shaken.server.client() as client:
        container = client.containers.create(name="x")
        kept = client.containers.files.create(container.id, file=("a", b"kept"))
        fill = "for n in range(6):\n    try: open(f'{n}', 'wb').write(bytes(90 << 20))\n    except OSError: pass"
        execute(client, container.id, fill)
        with pytest.raises(openai.BadRequestError) as error:
            client.containers.files.create(container.id, file=("a", b"x" * (100 << 20)))

        assert (error.value.param, error.value.code) == ("file", "container_full")
        assert read(client, container.id, kept.id) == b"kept"


# ── disconnected and slow clients ─────────────────────────────────────────────────────────────────────────────────────


def test_an_aborted_upload_keeps_the_old_file(shaken):
    with shaken.server.client() as client:
        container = client.containers.create(name="x")
        kept = client.containers.files.create(container.id, file=("a", b"kept"))
        host, port = shaken.server.url.removeprefix("http://").split(":")
        head = (
            f"POST /v1/containers/{container.id}/files HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5000000\r\n"
            "content-type: multipart/form-data; boundary=b\r\n\r\n"
            '--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
        )
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(head.encode() + b"x" * 2_000_000)
            time.sleep(0.2)
        assert execute(client, container.id, "open('a').read()")["result"] == "'kept'"
        assert [file.id for file in client.containers.files.list(container.id)] == [kept.id]


def test_an_upload_that_waits_for_the_lock_does_not_time_out(tmp_path):
    with (
        container_server("local", tmp_path, {"server": {"body_timeout": 1}}) as running,
        running.server.client() as client,
    ):
        container = client.containers.create(name="x")
        code = "import time\nprint('begun', flush=True)\ntime.sleep(3)"
        with running_code(running.server, container.id, code):
            made = client.containers.files.create(container.id, file=("a", b"x" * 1_000_000))
        assert made.bytes == 1_000_000


def test_an_unread_download_does_not_block_others(shaken):
    with shaken.server.client() as client:
        container = client.containers.create(name="x")
        execute(client, container.id, "open('large', 'wb').write(bytes(64 << 20))")
        (file,) = files(client, container.id).values()
        host, port = shaken.server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as raw:
            path = f"/v1/containers/{container.id}/files/{file.id}/content"
            raw.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            assert b"200 OK" in raw.recv(1000)
            assert execute(client, container.id, "1")["result"] == "1"
        assert len(read(client, container.id, file.id)) == 64 << 20


# ── leaks ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def descriptors(server) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def test_many_containers_leave_no_processes(shaken):
    server = shaken.server

    def visit(number):
        with server.client() as client:
            container = client.containers.create(name=f"{number}")
            client.containers.files.create(container.id, file=("a", b"x" * number))
            ran = execute(client, container.id, f"len(open('a').read()) == {number}")
            client.containers.delete(container.id)
            return ran["result"]

    with ThreadPoolExecutor(10) as threads:
        list(threads.map(visit, range(20)))  # until every thread and every spare is there that stays
        before, open_files, lying_about = shaken.sandbox_processes(), descriptors(server), shaken.files()
        assert set(threads.map(visit, range(40))) == {"True"}

    wait_until(lambda: shaken.sandbox_processes() <= before + 2)
    wait_until(lambda: descriptors(server) <= open_files + 5)  # connections that are kept for a while
    # The preforked container has a directory of its own, with a random name.
    wait_until(lambda: len(shaken.files()) <= len(lying_about) + 1)
    assert shaken.rows("SELECT count(*) FROM containers") == [(0,)]
    assert shaken.rows("SELECT count(*) FROM container_files") == [(0,)]
    with server.http() as http:
        assert "antwort_sandboxes 0.0" in http.get("/metrics").text
    if shaken.sandbox is not None:
        assert shaken.sandbox.sessions() == []
