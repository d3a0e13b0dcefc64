"""A replica takes over the work of another one: contents or rows that cannot be read, lost beats, and pauses."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import fixtures_server
import psycopg
import pytest
import replica_load
from fixtures_object_store import CREDENTIALS, running_s3
from fixtures_postgres import postgres_server, restartable_postgres, schema_url  # noqa: F401 - a fixture
from fixtures_replicas import (
    SCRIPT,
    metric,
    owner_of_response,
    replica_config,
    replica_id,
    run_replicas,
    stopped,
)
from fixtures_server import Server, run_server
from psycopg.sql import SQL, Identifier, Literal
from waiting import wait_until

pytestmark = pytest.mark.long

COUNTING_SERVER = fixtures_server.ROOT / "tests" / "support" / "fake_counting_provider.py"
SEALING = {"compaction": {"keys_file": "../sealing.json"}}


def begin(server: Server, text: object, **request: object) -> str:
    """A background response."""
    return server.client().responses.create(model="scripted", input=text, background=True, **request).id


def wait_for(server: Server, identifier: str, status: str = "completed"):
    client = server.client()
    return wait_until(lambda: (found := client.responses.retrieve(identifier)).status == status and found)


def test_a_response_that_cannot_be_decoded_does_not_prevent_the_take_over_of_others(postgres_server, tmp_path):  # noqa: F811 - a fixture
    """Nor the start: it waits for a version of the server that can read it."""
    with run_replicas(postgres_server, tmp_path) as (first, second):
        bad, good = begin(first, "forever"), begin(first, "slowly")
        url = schema_url(postgres_server, tmp_path)
        wait_for(first, bad, "in_progress")  # not written again until it ends
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "UPDATE responses SET body = convert_to(replace(convert_from(body, 'UTF8'), '\"status\":\"',"
                " '\"status\":\"later_'), 'UTF8') WHERE id = %s",
                (bad,),
            )
        dead = replica_id(first)
        first.kill()
        wait_for(second, good)
        first.start()
        assert first.client().responses.create(model="scripted", input="go on").status == "completed"
        assert owner_of_response(postgres_server, tmp_path, bad) == dead
        for server in (first, second):
            lines = [line for line in server.read_log().splitlines() if "response_unreadable" in line]
            assert len(lines) == 1
            assert bad in lines[0]


def test_responses_that_wait_for_contents_of_files_delay_no_others(postgres_server, tmp_path):  # noqa: F811 - a fixture
    with running_s3() as s3, ExitStack() as stack:
        storage = {"url": schema_url(postgres_server, tmp_path), "blobs": f"s3://{s3.bucket()}/files"}
        config = {"storage": {**storage, "object_store": {"endpoint": s3.url}}, **SEALING}
        first, second = (
            stack.enter_context(run_server(tmp_path / name, config, environment=CREDENTIALS, script=SCRIPT))
            for name in "ab"
        )
        file = first.client().files.create(file=("a.txt", b"content"), purpose="user_data")
        parts = [{"type": "input_text", "text": "forever"}, {"type": "input_file", "file_id": file.id}]
        waiting = [begin(first, [{"role": "user", "content": parts}]) for _ in range(6)]
        free = [begin(first, "slowly") for _ in range(3)]
        with s3.frozen():
            first.kill()
            for identifier in free:
                wait_for(second, identifier)
            cancelled = second.client().responses.cancel(waiting.pop())
            assert cancelled.status == "cancelled"
        wait_until(lambda: metric(second, "antwort_responses_running") == len(waiting), timeout=90)
        for identifier in waiting:
            assert second.client().responses.cancel(identifier).status == "cancelled"


def test_a_replica_whose_beats_fail_accepts_no_responses(tmp_path):
    """The others take it for dead, although it can write to the database: they would end its responses."""
    body = {"model": "scripted", "input": "quickly"}
    with restartable_postgres() as postgres, ExitStack() as stack:
        postgres.execute("CREATE ROLE one LOGIN SUPERUSER", "CREATE ROLE two LOGIN", "CREATE SCHEMA app")
        urls = [
            f"{postgres.url.replace('//postgres', f'//{role}')}&options=-csearch_path%3Dapp" for role in ("one", "two")
        ]

        def start(name: str, url: str) -> Server:
            config = {"storage": {"url": url, "blobs": str(tmp_path / "blobs")}, **SEALING}
            return stack.enter_context(run_server(tmp_path / name, config, script=SCRIPT))

        first = start("a", urls[0])  # makes the tables
        postgres.execute(
            "ALTER ROLE one NOSUPERUSER",
            *(
                f"GRANT ALL ON {objects} app TO PUBLIC"
                for objects in ("SCHEMA", "ALL TABLES IN SCHEMA", "ALL SEQUENCES IN SCHEMA")
            ),
        )
        second = start("b", urls[1])
        with first.http() as http, psycopg.connect(postgres.url, autocommit=True) as connection:
            assert http.post("/v1/responses", json=body).json()["status"] == "completed"
            end_heartbeat(connection, "one")
            wait_until(lambda: "replica_died" in second.read_log())
            refused = http.post("/v1/responses", json=body)
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert http.get("/readyz").status_code == 503
            assert http.get("/v1/files").status_code == 200
            assert connection.execute("SELECT status FROM app.responses").fetchall() == [("completed",)]
            connection.execute("ALTER ROLE one CONNECTION LIMIT -1")
            wait_until(lambda: http.get("/readyz").status_code == 200)
            assert http.post("/v1/responses", json=body).json()["status"] == "completed"


def end_heartbeat(connection: psycopg.Connection, role: str) -> None:
    """End the connection of the beats of a role, which holds an advisory lock, and let the role open no others."""
    [(count, heartbeat)] = connection.execute(
        "SELECT count(*), max(pid) FILTER (WHERE pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory'))"
        " FROM pg_stat_activity WHERE usename = %s",
        (role,),
    ).fetchall()
    connection.execute(SQL("ALTER ROLE {} CONNECTION LIMIT {}").format(Identifier(role), Literal(count - 1)))
    connection.execute("SELECT pg_terminate_backend(%s)", (heartbeat,))


@contextmanager
def counting_replicas(postgres: str, directory: Path, counted: Path) -> Iterator[list[Server]]:
    """Two replicas whose hosted tool takes two seconds, and writes its begin and its end to a file."""
    config = replica_config(schema_url(postgres, directory), directory)
    environment = {"COUNTED_FILE": str(counted), "COUNTED_SECONDS": "2"}
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                run_server(
                    directory / name,
                    config,
                    environment=environment,
                    script=replica_load.SCRIPT,
                    program=COUNTING_SERVER,
                )
            )
            for name in "ab"
        ]


def test_a_paused_replica_runs_no_call_again_that_was_taken_over(postgres_server, tmp_path):  # noqa: F811 - a fixture
    """Paused in the first of two calls. The other replica runs the second one, and so would it, without the check."""
    counted = tmp_path / "counted"
    with counting_replicas(postgres_server, tmp_path, counted) as (first, second):
        identifier = begin(first, "count it", tools=[replica_load.SEARCH])
        wait_until(counted.exists)
        with stopped(first):
            done = wait_for(second, identifier)
        wait_until(lambda: "was taken over by another replica" in first.read_log())
        wait_until(lambda: metric(first, "antwort_responses_running") == 0)
    assert [item.status for item in done.output if item.type == "file_search_call"] == ["failed", "completed"]
    begun = Counter(line for line in counted.read_text().splitlines() if line.startswith("begun"))
    assert begun == {"begun count it one": 1, "begun count it two": 1}


def test_a_paused_replica_runs_no_further_call_of_a_response_that_was_ended(postgres_server, tmp_path):  # noqa: F811 - a fixture
    """A response without `background` has failed meanwhile, and its client may have sent the request again."""
    counted = tmp_path / "counted"
    body = {"model": "scripted", "input": "count it", "tools": [replica_load.SEARCH], "stream": True}
    with ExitStack() as stack:
        first, second = stack.enter_context(counting_replicas(postgres_server, tmp_path, counted))
        http = stack.enter_context(first.http())
        stream = stack.enter_context(http.stream("POST", "/v1/responses", json=body))
        lines = stream.iter_lines()
        created = next(line for line in lines if line.startswith("data: "))
        identifier = json.loads(created.removeprefix("data: "))["response"]["id"]
        wait_until(counted.exists)
        with stopped(first):
            wait_for(second, identifier, "failed")
        assert "event: error" in list(lines)
    assert counted.read_text().splitlines() == ["begun count it one", "ended count it one"]


def test_a_periodic_job_runs_once_per_interval_and_not_per_replica(postgres_server, tmp_path):  # noqa: F811 - a fixture
    interval, runs = 0.2, 30
    with ExitStack() as stack:
        config = replica_config(schema_url(postgres_server, tmp_path), tmp_path)
        config["storage"]["sweep_interval"] = interval
        servers = [stack.enter_context(run_server(tmp_path / name, config)) for name in "ab"]

        def sweeps() -> list[int]:
            return [server.read_log().count("files_swept") for server in servers]

        since, before = time.monotonic(), sum(sweeps())
        after = wait_until(lambda: (found := sum(sweeps())) >= before + runs and found)
        intervals = (time.monotonic() - since) / interval
    assert after - before <= intervals + 2  # one had begun before, and one is about to end
