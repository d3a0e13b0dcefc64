"""PostgreSQL fails under a running server: requests get 503 with `retry-after`, nothing is lost, and it recovers."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import psycopg
import pytest
from fake_postgres_proxy import running_proxy
from fixtures_postgres import RestartablePostgres, postgres_server, restartable_postgres, schema_url  # noqa: F401 - a fixture
from fixtures_replicas import QUICKLY, SCRIPT, SLOWLY, run_replicas
from fixtures_server import Server, run_server
from stream_grammar import read_frames
from waiting import wait_until

pytestmark = pytest.mark.long

ASK = {"model": "scripted", "input": "hello"}


@pytest.fixture
def postgres() -> Iterator[RestartablePostgres]:
    with restartable_postgres() as server:
        yield server


@contextmanager
def serving(url: str, directory) -> Iterator[Server]:
    with run_server(directory, {"storage": {"url": url}}, script=SCRIPT) as server:
        yield server


def begin(server: Server, text: str) -> str:
    """A background response that has stored events."""
    identifier = server.client().responses.create(model="scripted", input=text, background=True).id
    with server.http() as http, http.stream("GET", f"/v1/responses/{identifier}?stream=true") as answer:
        next(line for line in answer.iter_lines() if "delta" in line)
    return identifier


def follow(server: Server, identifier: str, on_begun: Callable[[], object] = lambda: None) -> list[dict]:
    """The events of a stream; `on_begun` is called when its head has arrived."""
    with server.http() as http, http.stream("GET", f"/v1/responses/{identifier}?stream=true", timeout=150) as answer:
        on_begun()
        return read_frames(answer.read())


def check_refused(server: Server) -> None:
    """A request that stores something is a 503 that says when to try again; the server itself lives."""
    with server.http() as http:
        refused = wait_until(lambda: (answer := http.post("/v1/responses", json=ASK)).status_code != 200 and answer)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "server_error"
        assert http.get("/healthz").status_code == 200
        wait_until(lambda: http.get("/readyz").status_code == 503)


def check_recovered(server: Server) -> None:
    """The server is ready again, without a restart, and has left nothing unfinished."""
    with server.http() as http:
        wait_until(lambda: http.get("/readyz").status_code == 200)
        wait_until(lambda: http.post("/v1/responses", json=ASK).status_code == 200)


def check_nothing_is_unfinished(url: str) -> None:
    def unfinished() -> list:
        with psycopg.connect(url) as connection:
            query = "SELECT id FROM responses WHERE status IN ('queued', 'in_progress')"
            return connection.execute(query).fetchall()

    wait_until(lambda: unfinished() == [], timeout=60)


def check_completed(server: Server, identifier: str, text: str) -> None:
    client = server.client()
    wait_until(lambda: client.responses.retrieve(identifier).status == "completed", timeout=60)
    assert client.responses.retrieve(identifier).output_text == text
    events = follow(server, identifier)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.completed"


@pytest.mark.parametrize("seconds", [1, pytest.param(60, marks=pytest.mark.long)])
def test_an_outage_loses_nothing_and_needs_no_restart(postgres, tmp_path, seconds):
    with serving(postgres.url, tmp_path) as server, ThreadPoolExecutor() as threads:
        before = server.client().responses.create(model="scripted", input="before")
        running = begin(server, "slowly")
        is_followed = threading.Event()
        follower = threads.submit(follow, server, running, is_followed.set)
        assert is_followed.wait(30)
        postgres.stop()
        since = time.monotonic()
        check_refused(server)
        with server.http() as http:
            assert http.get(f"/v1/responses/{before.id}").status_code == 503
        wait_until(lambda: time.monotonic() - since > seconds, timeout=seconds + 30)
        postgres.start()
        check_recovered(server)
        assert server.client().responses.retrieve(before.id).output_text == "You said: before"
        check_completed(server, running, SLOWLY)
        assert follower.result()[-1]["type"] == "response.completed"  # the stream survives the outage
        check_nothing_is_unfinished(postgres.url)
        assert "replica_died" not in server.read_log()


def test_replicas_do_not_take_each_other_for_dead_in_an_outage(postgres, tmp_path):
    with run_replicas(postgres.url, tmp_path) as servers:
        running = [begin(server, "slowly") for server in servers]
        postgres.stop()
        since = time.monotonic()
        for server in servers:
            check_refused(server)
        wait_until(lambda: time.monotonic() - since > 7)  # longer than the lease
        postgres.start()
        for server in servers:
            check_recovered(server)
        for server, identifier in zip(servers, running, strict=True):
            check_completed(server, identifier, SLOWLY)
        for server in servers:
            log = server.read_log()
            assert "replica_died" not in log
            assert "was taken over" not in log
            assert "membership_recovered" in log


def test_a_read_only_server_is_read_and_refuses_writes(postgres, tmp_path):
    with serving(postgres.url, tmp_path) as server:
        before = server.client().responses.create(model="scripted", input="before")
        running = begin(server, "quickly")
        postgres.execute("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
        check_refused(server)
        assert server.client().responses.retrieve(before.id).output_text == "You said: before"
        postgres.execute("ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()")
        check_recovered(server)
        check_completed(server, running, QUICKLY)
        check_nothing_is_unfinished(postgres.url)


def test_connections_that_stay_read_only_are_replaced(postgres, tmp_path):
    """As after a fail-over: the sessions of a server that has become a replica never take a write again."""
    with serving(postgres.url, tmp_path) as server:
        running = begin(server, "quickly")
        postgres.execute("ALTER DATABASE postgres SET default_transaction_read_only = on")
        postgres.terminate_connections()
        check_refused(server)
        postgres.execute("ALTER DATABASE postgres RESET default_transaction_read_only")
        check_recovered(server)
        check_completed(server, running, QUICKLY)
        check_nothing_is_unfinished(postgres.url)


def test_missing_privileges_are_a_start_up_error_and_later_a_503(postgres, tmp_path):
    postgres.execute("CREATE ROLE app LOGIN", "CREATE SCHEMA app")
    url = f"{postgres.url.replace('//postgres', '//app')}&options=-csearch_path%3Dapp"
    with pytest.raises(AssertionError, match="did not start"), serving(url, tmp_path / "refused"):
        pass
    log = (tmp_path / "refused" / "log").read_text()
    assert "privilege" in log
    assert "start again" in log
    postgres.execute("GRANT ALL ON SCHEMA app TO app")
    with serving(url, tmp_path) as server:
        running = begin(server, "quickly")
        postgres.execute("REVOKE INSERT, UPDATE ON ALL TABLES IN SCHEMA app FROM app")
        check_refused(server)
        postgres.execute("GRANT ALL ON ALL TABLES IN SCHEMA app TO app")
        check_recovered(server)
        check_completed(server, running, QUICKLY)


def test_too_many_connections_are_a_503_until_there_are_some_again(postgres, tmp_path):
    postgres.execute("CREATE ROLE app LOGIN", "CREATE SCHEMA app AUTHORIZATION app")
    url = f"{postgres.url.replace('//postgres', '//app')}&options=-csearch_path%3Dapp"
    with serving(url, tmp_path) as server:
        running = begin(server, "slowly")
        postgres.execute("ALTER ROLE app CONNECTION LIMIT 0")
        postgres.terminate_connections()
        check_refused(server)
        postgres.execute("ALTER ROLE app CONNECTION LIMIT -1")
        check_recovered(server)
        check_completed(server, running, SLOWLY)


def test_a_full_disk_refuses_writes_and_recovers(postgres, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48m,mode=777", "x", str(disk)]
    if os.getuid() != 0 or subprocess.run(mount, check=False).returncode:
        pytest.skip("a small disk needs the right to mount one")
    try:
        for path in (disk, *disk.parents):
            if path.owner() == "root" and path.is_relative_to("/tmp/pytest-of-root"):  # noqa: S108 - of pytest
                path.chmod(0o755 if path != disk else 0o777)
        location = disk / "tablespace"
        location.mkdir()
        subprocess.run(["chown", "pgserver", location], check=True)
        postgres.execute(f"CREATE TABLESPACE tiny LOCATION '{location}'", "CREATE DATABASE tiny TABLESPACE tiny")
        url = postgres.url.replace("/postgres?", "/tiny?")
        with serving(url, tmp_path / "server") as server:
            running = begin(server, "quickly")
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("CREATE TABLE filler (content TEXT)")
                connection.execute("ALTER TABLE filler ALTER content SET STORAGE EXTERNAL")
                for size in (1_000_000, 50_000, 5_000):
                    fill(connection, size)
                check_refused_when_full(server)
                connection.execute("DROP TABLE filler")
            check_recovered(server)
            check_completed(server, running, QUICKLY)
            check_nothing_is_unfinished(url)
        postgres.execute("DROP DATABASE tiny", "DROP TABLESPACE tiny")
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def fill(connection: psycopg.Connection, size: int) -> None:
    """Insert rows until the disk is full."""
    with suppress(psycopg.errors.DiskFull):
        while True:
            connection.execute("INSERT INTO filler VALUES (repeat('x', %s))", (size,))


def check_refused_when_full(server: Server) -> None:
    """A large request needs more space than the pages of the tables have left."""
    with server.http() as http:
        large = {"model": "scripted", "input": "x" * 200_000}
        refused = wait_until(lambda: (answer := http.post("/v1/responses", json=large)).status_code != 200 and answer)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1


def test_tables_of_another_version_are_a_503(postgres, tmp_path):
    with serving(postgres.url, tmp_path) as server:
        postgres.execute("ALTER TABLE responses RENAME COLUMN replica TO renamed")
        with server.http() as http:
            refused = http.post("/v1/responses", json=ASK)
            assert (refused.status_code, int(refused.headers["retry-after"]) >= 1) == (503, True)
            assert "of another version of antwort" in server.read_log()
        postgres.execute("ALTER TABLE responses RENAME COLUMN renamed TO replica")
        check_recovered(server)


def test_a_slow_server_only_makes_requests_slow(postgres_server, tmp_path):  # noqa: F811 - a fixture
    with running_proxy(schema_url(postgres_server, tmp_path)) as proxy:
        url = schema_url(proxy.url, tmp_path)
        with run_replicas(url, tmp_path) as servers:
            running = begin(servers[0], "quickly")
            proxy.delay = 0.3
            with servers[1].http() as http:
                assert http.post("/v1/responses", json=ASK).json()["status"] == "completed"
            proxy.delay = 30.0
            check_refused(servers[1])
            proxy.delay = 0.0
            for server in servers:
                check_recovered(server)
            check_completed(servers[0], running, QUICKLY)
            assert not any("replica_died" in server.read_log() for server in servers)


def test_connections_that_break_during_a_commit_leave_nothing_unfinished(postgres_server, tmp_path):  # noqa: F811 - a fixture
    """As in a failover: what was committed is not known to the server, and may have been."""
    with running_proxy(postgres_server) as proxy, serving(schema_url(proxy.url, tmp_path), tmp_path) as server:
        running = [begin(server, "quickly") for _ in range(3)]
        statuses = []
        with server.http() as http:
            for _ in range(10):
                proxy.lost_commits = 2
                statuses.append(http.post("/v1/responses", json=ASK).status_code)
            proxy.lost_commits = 0
        assert set(statuses) <= {200, 503}
        assert 503 in statuses
        check_recovered(server)
        for identifier in running:
            check_completed(server, identifier, QUICKLY)
        check_nothing_is_unfinished(schema_url(postgres_server, tmp_path))
