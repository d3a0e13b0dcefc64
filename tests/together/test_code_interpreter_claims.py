"""Code interpreter on claimed pods: life of a claim, exhausted pools, base protocol, router, killed servers."""

from __future__ import annotations

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

import openai
import pytest
from fake_claim_controller import BASE_POOL, EMPTY_POOL, POOL, SMALL_POOL, UNKNOWN_POOL, BasePod, sandbox_name
from fake_sandbox_router import sandbox_router
from fixtures_claims import claim_cluster
from fixtures_code_interpreter import AUTO, SCRIPT, calls_of, logs_of, metric, run, run_with_callback
from fixtures_container_server import execute
from fixtures_server import run_server
from waiting import wait_until

pytestmark = pytest.mark.kubernetes

SAVE = "import os; open(os.environ['OUTPUT_DIR'] + '/kept.txt', 'w').write('kept')"


@pytest.fixture
def cluster(tmp_path):
    with claim_cluster(tmp_path / "cluster") as cluster:
        yield cluster
        cluster.wait_until_empty()


@contextmanager
def claiming_server(cluster, directory, pool, *, environment=None, containers=None, **settings):
    """A server whose code interpreter claims from this pool."""
    interpreter = {"enabled": True, **cluster.settings(pool), **settings}
    config = {"providers": {"code_interpreter": interpreter}, "containers": containers or {"max_containers": 500}}
    with run_server(directory / "server", config, environment=environment, script=SCRIPT) as server:
        server.timeout = 120.0
        yield server


# ── life of a claim ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_container_keeps_its_claim_until_it_is_deleted(cluster, tmp_path):
    with claiming_server(cluster, tmp_path, SMALL_POOL) as server, server.client() as client:
        assert f"in pods of the warm pool {cluster.namespace}/small" in server.banner
        first = run(client, "x = 20")
        claims = cluster.claims()
        second = run(client, "x + 1", previous_response_id=first.id)

        assert second.output_text == "21"
        assert cluster.claims() == claims
        assert len(claims) == 1
        client.containers.delete(calls_of(first)[0].container_id)
        cluster.wait_until_empty()


def test_a_lost_pod_fails_the_call_and_the_container_gets_another_one(cluster, tmp_path):
    with claiming_server(cluster, tmp_path, SMALL_POOL) as server, server.client() as client:
        lost = run_with_callback(client, "import time; time.sleep(600)", cluster.kill_pod)
        (item,) = calls_of(lost)
        assert (lost.status, item.status) == ("completed", "failed")
        assert "PodFailed: the pod has ended" in logs_of(item)
        container = client.containers.retrieve(item.container_id).to_dict()
        assert (container["status"], "PodFailed" in container["antwort:lost"]) == ("running", True)

        again = run(client, "6 * 7", previous_response_id=lost.id)
        assert logs_of(calls_of(again)[0]) == "42"
        assert run(client, "6 * 7").output_text == "42"  # a new container


def test_a_claim_that_is_deleted_by_hand(cluster, tmp_path):
    with claiming_server(cluster, tmp_path, SMALL_POOL) as server, server.client() as client:
        first = run(client, "x = 1")
        cluster.call(cluster.controller.delete(*cluster.claims()))
        cluster.wait_until_empty()

        again = run(client, "'x' in globals()", previous_response_id=first.id)
        assert "False" in again.output_text
        assert "restarted" in again.output_text


def test_an_exhausted_pool_is_a_failed_call_and_not_a_failed_response(cluster, tmp_path):
    with claiming_server(cluster, tmp_path, EMPTY_POOL, claim_timeout=2) as server, server.client() as client:
        response = run(client, "6 * 7")
        (item,) = calls_of(response)
        assert (response.status, item.status) == ("completed", "failed")
        reason = f"{cluster.namespace}/empty became ready within 2 s (SandboxMissing: the pool has no warm pod)"
        assert reason in logs_of(item)
        cluster.wait_until_empty()


def test_a_call_waits_for_a_pod(cluster, tmp_path):
    with (
        claiming_server(cluster, tmp_path, EMPTY_POOL) as server,
        server.client() as client,
        ThreadPoolExecutor(1) as thread,
    ):
        response = thread.submit(run, client, "6 * 7")
        wait_until(cluster.claims)
        cluster.call(cluster.controller.refill())
        assert response.result().output_text == "42"


def _disconnect(client, server, wait):
    """The client of an execution disconnects."""
    container = client.containers.create(name="x")
    address = urlsplit(server.url)
    with closing(http.client.HTTPConnection(str(address.hostname), address.port)) as connection:
        connection.request("POST", f"/v1/containers/{container.id}/exec", json.dumps({"code": "1"}))
        wait()


def _cancel(client, server, wait):
    """A background response is cancelled."""
    del server
    request = {"model": "scripted", "input": "# run\n1", "tools": [AUTO], "background": True}
    response = client.responses.create(**request)
    wait()
    assert client.responses.cancel(response.id).status == "cancelled"


def _delete(client, server, wait):
    """The container is deleted."""
    del server
    container = client.containers.create(name="x")
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(execute, client, container.id, "1")
        wait()
        client.containers.delete(container.id)
        assert isinstance(running.exception(20), openai.NotFoundError)


@pytest.mark.parametrize("stop", [_disconnect, _cancel, _delete])
def test_a_claim_that_is_not_needed_any_more_is_deleted_while_it_waits(cluster, tmp_path, stop):
    with claiming_server(cluster, tmp_path, EMPTY_POOL, claim_timeout=3600) as server, server.client() as client:
        stop(client, server, lambda: wait_until(cluster.claims))
        cluster.wait_until_empty()


def test_a_reason_that_does_not_change_fails_at_once(cluster, tmp_path):
    with claiming_server(cluster, tmp_path, UNKNOWN_POOL, claim_timeout=3600) as server, server.client() as client:
        response = run(client, "6 * 7")
        assert "WarmPoolNotFound: no SandboxWarmPool 'unknown'" in logs_of(calls_of(response)[0])
        cluster.wait_until_empty()


# ── stopped and killed servers ────────────────────────────────────────────────────────────────────────────────────────


def test_a_stopped_server_releases_its_claims(cluster, tmp_path):
    with claiming_server(cluster, tmp_path, SMALL_POOL) as server, server.client() as client:
        idle = run(client, "x = 1")
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(run_with_callback, client, "import time; time.sleep(600)", server.stop)
            running.exception(60)
        assert cluster.claims() == []
        assert idle.status == "completed"


def test_a_server_stopped_while_it_claims_releases_the_claim(cluster, tmp_path):
    with claiming_server(cluster, tmp_path, EMPTY_POOL) as server, server.client() as client:
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(run, client, "1")
            wait_until(cluster.claims)
            server.stop()
            running.exception(60)
        assert cluster.claims() == []


def test_the_claims_of_a_killed_server_are_deleted_by_its_next_start(cluster, tmp_path):
    with claiming_server(cluster, tmp_path, SMALL_POOL) as server, server.client() as client:
        first = run(client, "x = 1")
        with ThreadPoolExecutor(1) as thread:
            thread.submit(run_with_callback, client, "import time; time.sleep(600)", server.kill).exception(60)
        left = cluster.claims()
        assert len(left) == 2

        server.start()
        assert set(cluster.claims()).isdisjoint(left)
        with server.client() as again:
            ran = run(again, "'x' in globals()", previous_response_id=first.id)
            assert "False" in ran.output_text
            assert len(cluster.claims()) == 1


# ── router ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_pods_behind_a_router(tmp_path):
    """No address in the status; the router has a token of its own, and the pod gets its token all the same."""
    with claim_cluster(tmp_path / "cluster", {"SANDBOX_TOKEN": "of the pods"}) as cluster:
        cluster.controller.shows_address = False

        def find(name: str) -> str | None:
            return next((pod.ip for pod in cluster.pods().values() if sandbox_name(SMALL_POOL, pod) == name), None)

        environment = {"POD_TOKEN": "of the pods", "ROUTER_TOKEN": "of the router"}
        with (
            sandbox_router(find, "of the router") as router,
            claiming_server(
                *(cluster, tmp_path, SMALL_POOL),
                environment=environment,
                sandbox_token_env="POD_TOKEN",
                sandbox_router=router.url,
                sandbox_router_token_env="ROUTER_TOKEN",
            ) as server,
            server.client() as client,
        ):
            container = client.containers.create(name="routed")
            client.containers.files.create(container.id, file=("a.bin", bytes(5_000_000)))
            assert execute(client, container.id, "import os; os.path.getsize('a.bin')")["result"] == "5000000"
            response = run(client, "print('begun'); x = 20; x + 1")
            assert logs_of(calls_of(response)[0]) == "begun\n21"

            lost = run_with_callback(client, "import time; time.sleep(600)", cluster.kill_pod)
            assert "PodFailed: the pod has ended" in logs_of(calls_of(lost)[0])
        cluster.wait_until_empty()


# ── many executions ───────────────────────────────────────────────────────────────────────────────────────────────────


def _served_once(cluster) -> int:
    """The number of claims that had a pod; no pod has served two."""
    served = cluster.controller.served
    assert len({pod.ip for _, pod in served}) == len({name for name, _ in served}) == len(served)
    return len(served)


def test_a_base_protocol_pod_serves_one_execution(cluster, tmp_path):
    with claiming_server(cluster, tmp_path, BASE_POOL) as server, server.client() as client:
        first = run(client, SAVE)
        second = run(client, "print(open('kept.txt').read())", previous_response_id=first.id)

        assert logs_of(calls_of(second)[0]) == "kept\n"
        assert calls_of(first)[0].container_id == calls_of(second)[0].container_id
        cluster.wait_until_empty()  # while the container is still there
        assert _served_once(cluster) == 3
        bodies = [pod.server.requests for _, pod in cluster.controller.served if isinstance(pod, BasePod)]
        assert [len(requests) for requests in bodies] == [0, 1, 1]  # the first one revealed the protocol


def test_many_executions_in_base_protocol_pods_leave_no_claim_and_no_pod(cluster, tmp_path):
    with claiming_server(cluster, tmp_path, BASE_POOL) as server, server.client() as client:
        container = client.containers.create(name="one")
        for number in range(100):
            ran = execute(client, container.id, f"print({number} * 2)")
            assert ran["output"][0]["text"] == f"{number * 2}\n"
        with ThreadPoolExecutor(50) as threads:
            answers = list(threads.map(lambda number: run(client, f"print({number} * 2)"), range(50)))

        assert [answer.output_text for answer in answers] == [f"{number * 2}\n" for number in range(50)]
        cluster.wait_until_empty()
        assert _served_once(cluster) == 151  # the first one revealed the protocol


def test_many_executions_in_pods_with_sessions_leave_no_claim_and_no_pod(cluster, tmp_path):
    with claiming_server(cluster, tmp_path, SMALL_POOL, claim_timeout=300) as server, server.client() as client:
        server.timeout = 300.0

        def visit(number: int) -> str:
            with server.client() as own:
                container = own.containers.create(name=f"{number}")
                result = execute(own, container.id, f"{number} * 2")["result"]
                own.containers.delete(container.id)
                return result

        assert [visit(number) for number in range(100)] == [str(number * 2) for number in range(100)]
        assert client.containers.list().data == []
        with ThreadPoolExecutor(50) as threads:
            assert list(threads.map(visit, range(50))) == [str(number * 2) for number in range(50)]

        cluster.wait_until_empty()
        assert _served_once(cluster) == 150
        assert metric(server, "antwort_sandboxes") == 0


def test_an_expired_container_releases_its_claim(cluster, tmp_path):
    with (
        claiming_server(cluster, tmp_path, POOL, containers={"expires_after": 0.05}) as server,
        server.client() as client,
    ):
        run(client, "1")
        cluster.wait_until_empty()
