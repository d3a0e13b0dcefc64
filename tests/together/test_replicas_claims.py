"""Replicas on one PostgreSQL whose containers are claimed pods: use from each replica, killed and stopped replicas."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from fake_claim_controller import EMPTY_POOL, SMALL_POOL
from fixtures_claims import claim_cluster
from fixtures_code_interpreter import AUTO, OUTPUTS, calls_of, metric, run
from fixtures_container_replicas import run_container_replicas
from fixtures_container_server import execute
from fixtures_replicas import replica_id
from waiting import wait_until

from antwort.tools.builtins.codeinterpreter.kubernetes.resources import INSTANCE_LABEL

pytestmark = pytest.mark.kubernetes

ENDINGS = ("response.completed", "response.incomplete", "response.failed")


class Work(NamedTuple):
    """Containers and a response. `events` are those after `followed`; `claims` are those of the first replica."""

    idle: Any
    kept: Any
    response: Any
    followed: list[dict[str, Any]]
    events: Generator[dict[str, Any]]
    claims: set[str]


@pytest.fixture
def cluster(tmp_path):
    with claim_cluster(tmp_path / "cluster") as cluster:
        yield cluster
        cluster.wait_until_empty()


@contextmanager
def claiming_replicas(postgres, cluster, directory, pool=SMALL_POOL):
    """Two replicas that claim from this pool."""
    interpreter = {"enabled": True, **cluster.settings(pool)}
    config = {"providers": {"code_interpreter": interpreter}, "server": {"keep_alive": 0.2}}
    with run_container_replicas(postgres, directory, config) as replicas:
        for server in replicas.servers:
            server.timeout = 120.0
        yield replicas.servers


def claims_of(cluster, server):
    """The names of the claims of a replica, by their label."""
    found = cluster.call(cluster.controller.claims())
    owned = [claim["metadata"] for claim in found if claim["metadata"]["labels"][INSTANCE_LABEL] == replica_id(server)]
    return {metadata["name"] for metadata in owned}


def follow(server, identifier, after=-1):
    """The stored events of a response, as they come, until its end."""
    query = {"stream": True, "starting_after": after}
    with server.http() as http, http.stream("GET", f"/v1/responses/{identifier}", params=query, timeout=120) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line[6:])


def begin_work(cluster, first, second):
    """An idle container on each replica, and a response whose code runs on the first: all with their claims.

    Begins again where a replica was taken for dead meanwhile: one that gets no CPU for five seconds loses its lease,
    and its claims are swept.
    """
    one, other = first.client(), second.client()
    for _ in range(5):
        idle, kept = one.containers.create(name="idle"), other.containers.create(name="kept")
        execute(one, idle.id, "x = 1")
        execute(other, kept.id, "y = 1")
        response = one.responses.create(
            model="scripted",
            input="# run\nprint('begun', flush=True)\nimport time; time.sleep(600)",
            tools=[AUTO],
            include=[*OUTPUTS, "antwort:code_interpreter_call.live_output"],
            background=True,
        )
        events, followed = follow(second, response.id), []
        for event in events:
            followed.append(event)
            if "begun" in event.get("delta", ""):
                break
        claims = claims_of(cluster, first)
        if (len(claims), len(claims_of(cluster, second))) == (2, 1):
            return Work(idle, kept, response, followed, events, claims)
        events.close()
        other.responses.cancel(response.id)
        for container in other.containers.list():
            other.containers.delete(container.id)
    pytest.fail("the replicas lose their leases: this machine is too slow")


def test_a_container_on_a_claim_is_reachable_from_each_replica(cluster, postgres_server, tmp_path):
    with claiming_replicas(postgres_server, cluster, tmp_path) as (first, second):
        one, other = first.client(), second.client()
        container = one.containers.create(name="x")
        execute(one, container.id, "x = 20")
        assert execute(other, container.id, "x + 1")["result"] == "21"
        made = other.containers.files.create(container.id, file=("a.bin", bytes(3_000_000)))
        assert len(one.containers.files.content.retrieve(made.id, container_id=container.id).read()) == 3_000_000
        tools = [{"type": "code_interpreter", "container": container.id}]
        assert run(other, "x + 2", tools=tools).output_text == "22"
        assert len(cluster.claims()) == 1
        assert claims_of(cluster, first) == set(cluster.claims())
        other.containers.delete(container.id)
        cluster.wait_until_empty()


def test_the_claims_of_a_killed_replica_are_swept_and_its_work_continues_elsewhere(cluster, postgres_server, tmp_path):
    with claiming_replicas(postgres_server, cluster, tmp_path) as (first, second):
        idle, kept, response, followed, events, left = begin_work(cluster, first, second)
        other, takeovers = second.client(), metric(second, "antwort_takeovers_total")
        first.kill()
        followed += events

        assert [event["type"] for event in followed if event["type"] in ENDINGS] == ["response.completed"]
        assert [event["sequence_number"] for event in followed] == [*range(len(followed))]
        resumed = [event["sequence_number"] for event in follow(second, response.id, 3)]
        assert resumed == [event["sequence_number"] for event in followed[4:]]
        (call,) = calls_of(other.responses.retrieve(response.id, include=OUTPUTS))
        assert call.status == "failed"

        wait_until(lambda: left.isdisjoint(cluster.claims()))
        assert execute(other, kept.id, "y + 1")["result"] == "2"  # the claims of the other replica are left alone
        again = execute(other, idle.id, "'x' in globals()")
        assert (again["result"], again["replaced"]) == ("False", True)
        assert metric(second, "antwort_takeovers_total") == takeovers + 1
        first.start()
        assert execute(first.client(), idle.id, "1 + 1")["result"] == "2"


def test_replicas_that_were_all_killed_leave_no_claim_after_a_start(cluster, postgres_server, tmp_path):
    with claiming_replicas(postgres_server, cluster, tmp_path) as servers:
        for server in servers:
            client = server.client()
            execute(client, client.containers.create(name="x").id, "1")
        left = set(cluster.claims())
        assert len(left) == 2
        for server in servers:
            server.kill()

        servers[0].start()
        wait_until(lambda: left.isdisjoint(cluster.claims()))


def test_a_replica_that_is_killed_while_its_claim_waits(cluster, postgres_server, tmp_path):
    with claiming_replicas(postgres_server, cluster, tmp_path, EMPTY_POOL) as (first, second):
        request = {"model": "scripted", "input": "# run\n1", "tools": [AUTO], "background": True}
        response = first.client().responses.create(**request)
        wait_until(cluster.claims)
        (left,) = cluster.claims()
        first.kill()
        wait_until(lambda: left not in cluster.claims())

        cluster.call(cluster.controller.refill())
        other = second.client()
        ended = wait_until(lambda: (found := other.responses.retrieve(response.id)).status == "completed" and found, 60)
        assert [call.status for call in calls_of(ended)] == ["failed"]  # it may have been begun, so it is not repeated
        assert run(other, "6 * 7").output_text == "42"
