"""Leak tests of the code interpreter: no process, file or row is left, with every sandbox backend."""

from __future__ import annotations

import json
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
from fixtures_code_interpreter import (
    AUTO,
    BACKENDS,
    calls_of,
    code_server,
    descendants,
    is_running,
    metric,
    run,
    run_with_callback,
    sandbox_pid,
)

pytestmark = pytest.mark.long

QUICK = {"expires_after": 0.05, "max_containers": 500}


def eventually(true, what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def open_files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def temporary(server) -> list[str]:
    return sorted(path.name for path in (server.directory / "scratch").rglob("*"))


@pytest.mark.parametrize("backend", ["local", "sandbox_url"])  # claims: test_code_interpreter_claims.py
def test_a_hundred_sequential_and_twenty_concurrent_responses_leave_nothing(backend, tmp_path):
    with code_server(backend, tmp_path, containers=QUICK) as server, server.client() as client:
        with ThreadPoolExecutor(20) as many:  # whatever is made once is made now: connections, threads, spares
            assert len(list(many.map(lambda number: run(client, str(number)), range(20)))) == 20
        eventually(lambda: metric(server, "antwort_sandboxes") == 0, "the first containers expire")
        time.sleep(1)
        before = (
            len(descendants(sandbox_pid(server))),
            open_files(server.process.pid),
            open_files(sandbox_pid(server)),
        )
        files = temporary(server)
        answers = [run(client, f"open('{number}.txt', 'w').write('x'); {number} * 2") for number in range(100)]
        with ThreadPoolExecutor(20) as many:
            answers += many.map(lambda number: run(client, f"{number} * 2"), range(100, 120))

        assert [answer.output_text.splitlines()[0] for answer in answers] == [str(number * 2) for number in range(120)]
        containers = {calls_of(answer)[0].container_id for answer in answers}
        assert len(containers) == 120
        eventually(lambda: metric(server, "antwort_sandboxes") == 0, "every container expires")
        eventually(lambda: sessions(server) == 0, "no session is left at the sandbox server")

        def as_before() -> bool:
            now = (
                len(descendants(sandbox_pid(server))),
                open_files(server.process.pid),
                open_files(sandbox_pid(server)),
            )
            return all(here <= there + 2 for here, there in zip(now, before, strict=True))

        eventually(as_before, f"processes and descriptors are as before: {before}")
        assert temporary(server) == files
        rows = sqlite3.connect(f"file:{server.directory}/.antwort/antwort.db?mode=ro", uri=True)
        assert rows.execute("SELECT count(*) FROM containers WHERE status = 'running'").fetchone() == (0,)
        assert rows.execute("SELECT count(*) FROM responses").fetchone() == (140,)
        rows.close()


def sessions(server) -> int:
    return len(server.sandbox.sessions()) if server.sandbox is not None else 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_client_disconnect_stops_the_code(backend, tmp_path):
    with code_server(backend, tmp_path) as server, server.client() as client:
        stream = client.responses.create(
            model="scripted", input="# run\nimport time\nwhile True: time.sleep(0.01)", tools=[AUTO], stream=True
        )
        for event in stream:
            if event.type == "response.code_interpreter_call.interpreting":
                break
        (container,) = client.containers.list().data
        stream.close()
        eventually(lambda: metric(server, "antwort_responses_running") == 0, "the response is given up")
        kept = client.responses.retrieve(event_response(server))
        assert (kept.status, calls_of(kept)[0].status) == ("cancelled", "incomplete")
        assert calls_of(kept)[0].code.endswith("while True: time.sleep(0.01)")
        tool = {"type": "code_interpreter", "container": container.id}
        assert run(client, "'free again'", tools=[tool]).output_text == "'free again'"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_container_deleted_during_a_call(backend, tmp_path):
    with code_server(backend, tmp_path) as server, server.client() as client:

        def delete() -> None:
            (container,) = client.containers.list().data
            client.containers.delete(container.id)

        response = run_with_callback(client, "import time; time.sleep(60)", delete)
        assert response.status == "completed"
        assert calls_of(response)[0].status == "failed"
        assert client.containers.list().data == []


def test_a_server_killed_during_a_call_leaves_no_processes(tmp_path):
    with code_server("local", tmp_path) as server, server.client() as client:
        below: list[int] = []

        def kill() -> None:
            below.extend(descendants(server.process.pid))
            server.kill()

        with pytest.raises(openai.APIConnectionError):
            run_with_callback(client, "import time; time.sleep(60)", kill)
        assert len(below) > 2
        eventually(lambda: not any(map(is_running, below)), "everything that it had started ends with it")

        server.start()
        with server.client() as again:
            response = again.responses.retrieve(event_response(server))
            assert response.status == "failed"
            (container,) = again.containers.list().data
            tool = {"type": "code_interpreter", "container": container.id}
            assert "restarted" in run(again, "1 + 1", tools=[tool]).output_text


def event_response(server) -> str:
    """The id of the only response."""
    lines = [json.loads(line) for line in server.read_log().splitlines() if '"response.create"' in line]
    return lines[-1]["object_id"]


def test_a_stopped_server_ends_its_sandboxes(tmp_path):
    with code_server("local", tmp_path) as server, server.client() as client:
        run(client, "x = 1")
        below = descendants(server.process.pid)
        assert below
        assert server.stop() == 0
        assert not any(map(is_running, below))


def test_a_restarted_sandbox_server(tmp_path):
    with code_server("sandbox_url", tmp_path) as server, server.client() as client:
        first = run(client, "x = 1")
        assert server.sandbox is not None
        server.sandbox.stop()
        broken = run(client, "x", previous_response_id=first.id)
        assert calls_of(broken)[0].status == "failed"
        assert "cannot be reached" in broken.output_text
        server.sandbox.start()
        again = run(client, "'x' in globals()", previous_response_id=broken.id)
        assert "False" in again.output_text
        assert "restarted" in again.output_text
