"""An API server of Kubernetes that is killed and started again, or frozen, while containers are on claims."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import fixtures_claims
import pytest
from fake_claim_controller import EMPTY_POOL
from fixtures_code_interpreter import SCRIPT, calls_of, run
from fixtures_container_server import execute
from fixtures_kubernetes import START, killed_api_server, started_api_server
from fixtures_server import run_server
from waiting import wait_until

from antwort.tools.builtins.codeinterpreter.kubernetes.api import KubernetesError

pytestmark = pytest.mark.kubernetes


@pytest.fixture
def cluster(tmp_path):
    """A cluster with an API server of its own."""
    if not START.exists():
        pytest.skip("needs `shared`")
    with (
        started_api_server(tmp_path / "api", START) as kubeconfig,
        fixtures_claims.claim_cluster(tmp_path / "cluster", kubeconfig=kubeconfig) as cluster,
    ):
        yield cluster
        cluster.wait_until_empty()


@pytest.fixture
def server(cluster, tmp_path):
    config = {"providers": {"code_interpreter": {"enabled": True, **cluster.settings(EMPTY_POOL)}}}
    with run_server(tmp_path / "server", config, script=SCRIPT) as server:
        server.timeout = 120.0
        yield server


def is_served(cluster):
    try:
        cluster.claims()
    except KubernetesError:
        return False
    return True


def test_an_api_server_that_is_killed_and_started_again(cluster, server, tmp_path):
    client = server.client()
    with ThreadPoolExecutor(2) as threads:
        cluster.call(cluster.controller.refill())
        deleted, held = (client.containers.create(name=name).id for name in ("deleted", "held"))
        for container in (deleted, held):
            execute(client, container, "x = 1")
        cluster.controller.refilled.clear()
        waiting = threads.submit(run, client, "6 * 7")
        wait_until(lambda: len(cluster.claims()) == 3)
        with killed_api_server(tmp_path / "api"):
            assert execute(client, held, "x + 1")["result"] == "2"
            client.containers.delete(deleted)
        wait_until(lambda: is_served(cluster))  # what the fake controller needs; the server has asked before
        cluster.call(cluster.controller.refill())

        assert waiting.result().output_text == "42"
        assert execute(client, held, "x + 2")["result"] == "3"
        wait_until(lambda: len(cluster.claims()) == 2, timeout=60)
        for container in (held, calls_of(waiting.result())[0].container_id):
            client.containers.delete(container)
        cluster.wait_until_empty()


def test_a_server_that_is_stopped_while_it_creates_a_claim_on_a_frozen_api_server(cluster, server, tmp_path):
    """The creation may be executed after the server has ended: its next start deletes the claim."""
    pid = int((tmp_path / "api" / "pids").read_text(encoding="utf-8").split()[-1])
    client = server.client()
    with ThreadPoolExecutor(1) as threads:
        os.kill(pid, signal.SIGSTOP)
        try:
            waiting = threads.submit(run, client, "6 * 7")
            wait_until(lambda: b"container.create" in server.read_log().encode())
            server.stop()
            waiting.exception(60)
        finally:
            os.kill(pid, signal.SIGCONT)
        server.start()
        cluster.wait_until_empty()
