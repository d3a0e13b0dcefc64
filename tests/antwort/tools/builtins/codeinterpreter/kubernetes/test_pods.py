from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from fake_base_sandbox import base_sandbox
from fake_kubernetes_api import fake_kubernetes_api
from fake_sandbox_router import sandbox_router
from waiting import wait_until_async

from antwort.containers.sandboxes.port import SandboxAuthError, SandboxUnavailable
from antwort.tools.builtins.codeinterpreter.kubernetes import Claims, KubernetesApi, PodConnector, SandboxRouter
from antwort.tools.builtins.codeinterpreter.kubernetes.claims import _Attempt

pytestmark = pytest.mark.anyio

UNUSED = "127.0.0.99"


@pytest.fixture
async def api():
    async with fake_kubernetes_api() as api:
        yield api


@pytest.fixture
async def claims(api, tmp_path):
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(api.kubeconfig()), encoding="utf-8")
    client = KubernetesApi.from_kubeconfig(str(path))
    claims = Claims(client, namespace="n", template="t", warm_pool="p", instance="one", loss_timeout=0.1)
    yield claims
    api.claims.clear()
    await claims.aclose()


@contextmanager
def answering(pages):
    """A server with these pages: a status and a body by path."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, body = pages.get(self.path, (404, {"error": "no such route"}))
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by http.server
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


HEALTH = {"status": "ok", "mode": "python", "capacity": 3, "current_load": 0, "uptime_seconds": 1}


async def connect(claims, api, port, *, ip: str | None = "127.0.0.1", seconds=0.5, router=None, connector=None):
    """Connect to the pod of a claim that is ready."""
    if not api.claims:
        await claims._create(_Attempt("claim"), 30)
    api.ready(ip)
    claim = await claims._get("claim")
    connector = connector or PodConnector(claims, port=port, token="of the pod", router=router)
    return await connector.connect(claim, asyncio.get_running_loop().time() + seconds)


async def test_a_pod_is_checked_and_its_protocol_detected(claims, api):
    for has_sessions in (False, True):
        pages = {"/health": (200, HEALTH)} | ({"/sessions": (200, {"sessions": []})} if has_sessions else {})
        with answering(pages) as port:
            pod = await connect(claims, api, port)
            assert await pod.server.is_stateful() is has_sessions
            await pod.server.aclose()


@pytest.mark.parametrize(
    "pages, message",
    [
        ({}, "not a sandbox server: there is no /health"),
        ({"/health": (200, {"status": "ok"})}, "not a sandbox server: /health has another form"),
        ({"/health": (200, "fine")}, "not a sandbox server: /health has another form"),
        ({"/health": (200, {**HEALTH, "mode": "shell"})}, "runs 'shell', not 'python'"),
        ({"/health": (200, {**HEALTH, "used": True})}, "has been used by another container"),
        ({"/health": (200, {**HEALTH, "sessions": 1})}, "has been used by another container"),
        ({"/health": (200, {**HEALTH, "current_load": 1})}, "has been used by another container"),
        ({"/health": (200, HEALTH), "/sessions": (401, {"error": "no"})}, "rejects the token"),
    ],
)
async def test_a_pod_of_another_kind_and_a_used_one_are_refused_at_once(claims, api, pages, message):
    with answering(pages) as port, pytest.raises(SandboxUnavailable, match=message):
        await connect(claims, api, port, seconds=600)


async def test_a_pod_that_never_answers_is_named_with_its_address(claims, api):
    with pytest.raises(SandboxUnavailable, match=f"ready, but does not answer at http://{UNUSED}:9: .*network policy"):
        await connect(claims, api, 9, ip=UNUSED)


async def test_a_pod_that_fails_while_it_is_awaited(claims, api):
    connecting = asyncio.create_task(connect(claims, api, 9, ip=UNUSED, seconds=600))
    await wait_until_async(lambda: "status" in api.claims.get("claim", {}))
    api.status("False", "PodFailed", message="it was evicted")

    with pytest.raises(SandboxUnavailable, match=r"has ended \(PodFailed: it was evicted"):
        await connecting


@pytest.mark.parametrize("change", ["uid", "name", "address"])
async def test_a_pod_that_is_not_that_of_the_claim_any_more_is_refused(claims, api, change):
    with answering({"/health": (200, HEALTH)}) as port:
        await claims._create(_Attempt("claim"), 30)
        api.ready()
        claim = await claims._get("claim")
        if change == "uid":
            api.claims["claim"]["metadata"]["uid"] = "another"
        elif change == "name":
            api.claims["claim"]["status"]["sandbox"]["name"] = "another"
        else:
            api.ready(UNUSED)
        connector = PodConnector(claims, port=port, token=None)
        with pytest.raises(SandboxUnavailable, match=r"was deleted|was replaced by another one"):
            await connector.connect(claim, asyncio.get_running_loop().time() + 30)


async def test_a_pod_whose_claim_cannot_be_read_is_confirmed_before_it_is_used(claims, api):
    """Without that the address may be that of another claim's pod since its own has ended."""
    with answering({"/health": (200, HEALTH)}) as port:
        await claims._create(_Attempt("claim"), 30)
        api.ready()
        claim = await claims._get("claim")
        api.ready(UNUSED)  # its pod has ended, and another one has its address
        api.faults["GET"] = [503, None]
        connector = PodConnector(claims, port=port, token=None)
        with pytest.raises(SandboxUnavailable, match="was replaced by another one"):
            await connector.connect(claim, asyncio.get_running_loop().time() + 30)

        api.faults["GET"] = [503] * 1000
        with pytest.raises(SandboxUnavailable, match=r"its claim cannot be read: .*answered 503"):
            await connector.connect(claim, asyncio.get_running_loop().time() + 0.5)


async def test_a_claim_that_is_not_ready_for_a_moment_keeps_its_pod(claims, api):
    with answering({"/health": (200, HEALTH)}) as port:
        await claims._create(_Attempt("claim"), 30)
        api.ready()
        claim = await claims._get("claim")
        api.status("False", "DependenciesNotReady", sandbox={"name": "adopted", "podIPs": ["127.0.0.1"]})
        pod = await PodConnector(claims, port=port, token=None).connect(claim, asyncio.get_running_loop().time() + 30)
        await pod.server.aclose()


async def test_an_address_that_arrives_after_the_readiness(claims, api):
    with answering({"/health": (200, HEALTH)}) as port:
        connecting = asyncio.create_task(connect(claims, api, port, ip=None, seconds=600))
        await wait_until_async(lambda: api.count("GET") > 3)
        api.ready()
        pod = await connecting
        assert pod.claim.pod_ip == "127.0.0.1"
        await pod.server.aclose()


async def test_a_pod_that_fails_before_it_has_an_address(claims, api):
    connecting = asyncio.create_task(connect(claims, api, 9, ip=None, seconds=20))
    await wait_until_async(lambda: api.count("GET") > 3)
    api.status("False", "PodFailed", message="it was evicted", sandbox={"name": "adopted"})

    with pytest.raises(SandboxUnavailable, match="has failed: PodFailed: it was evicted"):
        await connecting


async def test_without_any_address_the_template_is_named(claims, api):
    with pytest.raises(SandboxUnavailable, match="The Sandbox adopted cannot be read"):
        await connect(claims, api, 9, ip=None, seconds=0.5)


# ── router ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_pod_without_an_address_is_reached_through_the_router(claims, api):
    with base_sandbox() as sandbox, sandbox_router(lambda _: "127.0.0.1", "of the router") as router:
        port = int(sandbox.url.rpartition(":")[2])
        pod = await connect(claims, api, port, ip=None, seconds=30, router=SandboxRouter(router.url, "of the router"))
        await pod.server.aclose()

    sent = {name: value for name, value in router.headers.items() if name.startswith("x-")}
    assert sent == {
        "x-sandbox-id": "adopted",
        "x-sandbox-namespace": "n",
        "x-sandbox-port": str(port),
        "x-antwort-authorization": "Bearer of the pod",
    }
    assert router.headers["authorization"] == "Bearer of the router"


async def test_the_router_is_used_where_the_pod_is_not_reachable_and_then_first(claims, api):
    with base_sandbox() as sandbox, sandbox_router(lambda _: "127.0.0.1") as router:
        port = int(sandbox.url.rpartition(":")[2])
        connector = PodConnector(claims, port=port, token=None, router=SandboxRouter(router.url))
        pod = await connect(claims, api, port, ip="127.0.0.1", seconds=30, connector=connector)
        await pod.server.aclose()
        assert router.requests == 0  # the address is tried first

        pod = await connect(claims, api, port, ip=UNUSED, seconds=30, connector=connector)
        await pod.server.aclose()
        assert router.headers["x-sandbox-pod-ip"] == UNUSED
        requests = router.requests

        pod = await connect(claims, api, port, ip="127.0.0.1", seconds=30, connector=connector)
        await pod.server.aclose()
        assert router.requests > requests


async def test_errors_of_the_router(claims, api):
    with sandbox_router(lambda _: None, "of the router") as router:
        with pytest.raises(SandboxAuthError, match="router rejects the request: Missing or invalid Authorization"):
            await connect(claims, api, 9, ip=None, seconds=30, router=SandboxRouter(router.url, "wrong"))
        message = "router answered 502: Could not connect to the backend sandbox: adopted"
        with pytest.raises(SandboxUnavailable, match=message):
            await connect(claims, api, 9, ip=None, seconds=5, router=SandboxRouter(router.url, "of the router"))
