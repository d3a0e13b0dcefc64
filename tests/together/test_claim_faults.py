"""Faults of watches, of API servers and of controllers: a claim is acquired or refused in time, and never leaked."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from fake_kubernetes_api import fake_kubernetes_api
from waiting import wait_until_async

from antwort.config import CodeInterpreterSettings
from antwort.containers.sandboxes.port import SandboxUnavailable
from antwort.containers.sandboxes.remote import RemoteSandboxes
from antwort.tools.builtins.codeinterpreter.kubernetes import (
    Claims,
    KubernetesApi,
    KubernetesSandboxes,
    PodConnector,
    sandboxes,
)
from antwort.tools.builtins.codeinterpreter.kubernetes.api import ApiRefused
from antwort.tools.builtins.codeinterpreter.kubernetes.claims import _Attempt
from antwort.tools.builtins.codeinterpreter.kubernetes.pods import ConnectedPod

pytestmark = [pytest.mark.anyio, pytest.mark.long]


@pytest.fixture
async def api():
    async with fake_kubernetes_api() as api:
        yield api


@pytest.fixture
async def open_claims(api, tmp_path):
    opened = []

    def open_claims(**settings):
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(api.kubeconfig()), encoding="utf-8")
        client = KubernetesApi.from_kubeconfig(str(path))
        claims = Claims(client, namespace="n", template="t", warm_pool="p", instance="one", **settings)
        opened.append(claims)
        return claims

    yield open_claims
    for claims in opened:
        await claims.aclose()


@asynccontextmanager
async def acquiring(api, claims):
    """An acquisition whose watch is open."""
    acquisition = asyncio.create_task(claims.acquire(30))
    await wait_until_async(lambda: api.watches)
    yield acquisition
    acquisition.cancel()
    await asyncio.gather(acquisition, return_exceptions=True)


async def test_one_watch_from_the_version_of_the_creation(api, open_claims):
    async with acquiring(api, open_claims()) as acquisition:
        api.event("BOOKMARK", {"metadata": {"resourceVersion": "9"}})
        api.event("MODIFIED", api.status("False", "SandboxMissing"))
        api.event("MODIFIED", api.ready())

        assert (await acquisition).pod_ip == "127.0.0.1"
    (watch,) = [request for request in api.requests if "watch" in request.query]
    (name,) = api.claims
    assert watch.query["resourceVersion"] == ["7"]
    assert watch.query["fieldSelector"] == [f"metadata.name={name}"]
    assert watch.query["allowWatchBookmarks"] == ["true"]


async def test_a_status_that_flaps_is_awaited(api, open_claims):
    async with acquiring(api, open_claims()) as acquisition:
        for _ in range(20):
            api.event("MODIFIED", api.status("True", "DependenciesReady"))  # no sandbox yet
            api.event("MODIFIED", api.status("Unknown", "ReconcilerError", sandbox={"name": "adopted"}))
        api.event("MODIFIED", api.ready())

        assert (await acquisition).sandbox_name == "adopted"


@pytest.mark.parametrize(
    "line",
    [
        json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}).encode(),
        json.dumps({"type": "ERROR", "object": None}).encode(),
        b"no JSON",
        b'{"type": "MODIFIED", "object": {"metadata": 7}}',
        b'{"type": "MODIFIED", "object": "' + b"x" * (5 << 20) + b'"}',
        b'"\xff"',
        None,
    ],
    ids=["410", "error", "no JSON", "no claim", "huge", "not UTF-8", "end"],
)
async def test_a_watch_that_breaks_is_opened_again_from_the_current_claim(api, open_claims, line):
    async with acquiring(api, open_claims()) as acquisition:
        api.status("False", "SandboxMissing")["metadata"]["resourceVersion"] = "12"
        api.events.put_nowait(line)
        await wait_until_async(lambda: api.watches > 1)
        api.event("MODIFIED", api.ready())

        await acquisition
    assert [one.query["resourceVersion"] for one in api.requests if "watch" in one.query] == [["7"], ["12"]]


@pytest.mark.parametrize("status", [410, 429, 500, 503])
async def test_a_watch_that_is_refused_is_opened_again(api, open_claims, status):
    api.faults["WATCH"] = [status, status]
    async with acquiring(api, open_claims()) as acquisition:
        api.event("MODIFIED", api.ready())
        await acquisition


async def test_a_watch_that_is_forbidden_ends_the_acquisition(api, open_claims):
    api.faults["WATCH"] = [403]
    with pytest.raises(SandboxUnavailable, match="answered 403: a fault of the test"):
        await open_claims().acquire(30)
    assert api.claims == {}


async def test_a_silent_watch_does_not_hide_a_ready_claim(api, open_claims):
    async with acquiring(api, open_claims(silence=0.05)) as acquisition:
        api.ready()  # without an event

        await acquisition


async def test_a_silent_watch_ends_long_before_the_time_to_wait_for_a_pod(api, open_claims):
    """The claim is read and watched again several times in that time, so a lost event delays it only."""
    longest = CodeInterpreterSettings().claim_timeout / 3
    for timeout, most in ((CodeInterpreterSettings().claim_timeout, longest), (0.6, 0.2), (600, longest)):
        claims = open_claims()
        silences = []

        async def watch(*_, silence, into=silences, **__):
            into.append(silence)
            for _ in into:
                raise ApiRefused("enough", 403)
            yield b""

        claims._api.watch = watch
        with pytest.raises(SandboxUnavailable, match="enough"):
            await claims.acquire(timeout)
        assert silences == [pytest.approx(most)]


@pytest.mark.parametrize("kind", ["DELETED", "MODIFIED"])
async def test_a_claim_with_another_uid_is_another_claim(api, open_claims, kind):
    async with acquiring(api, open_claims()) as acquisition:
        (name,) = api.claims
        claim = api.ready()
        claim["metadata"]["uid"] = "another"
        api.event(kind, claim)

        with pytest.raises(SandboxUnavailable, match="was deleted before its pod was ready"):
            await acquisition
    assert list(api.claims) == [name]  # it is not deleted


async def test_a_claim_that_is_being_deleted_is_gone(api, open_claims):
    async with acquiring(api, open_claims()) as acquisition:
        claim = api.ready()
        claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        api.event("MODIFIED", claim)

        with pytest.raises(SandboxUnavailable, match="was deleted"):
            await acquisition


async def test_a_long_message_of_the_controller_is_shortened(api, open_claims):
    async with acquiring(api, open_claims()) as acquisition:
        api.event("MODIFIED", api.status("False", "TemplateNotFound", message="x" * 1_000_000))

        with pytest.raises(SandboxUnavailable) as error:
            await acquisition
    assert "TemplateNotFound: xxx" in str(error.value)
    assert len(str(error.value)) < 1_000


async def test_a_creation_without_a_reply_is_continued(api, open_claims):
    api.faults["POST"] = [None, 429]
    async with acquiring(api, open_claims()) as acquisition:
        api.event("MODIFIED", api.ready())
        await acquisition
    assert len(api.claims) == 1


async def test_a_creation_that_is_executed_after_its_deletion_is_deleted_again(api, open_claims):
    api.faults["POST"] = [503] * 100
    claims = open_claims()
    with pytest.raises(SandboxUnavailable, match="answered 503"):
        await claims.acquire(0.3)
    assert api.claims == {}

    created = next(one.body for one in api.requests if one.method == "POST")
    api._create(created)
    await wait_until_async(lambda: not api.claims)


async def test_a_refused_creation_is_not_deleted(api, open_claims):
    api.faults["POST"] = [403]
    with pytest.raises(SandboxUnavailable, match="answered 403"):
        await open_claims().acquire(30)
    assert api.count("DELETE") == 0


async def test_a_deletion_is_repeated_until_it_is_confirmed(api, open_claims):
    claims = open_claims()
    async with acquiring(api, claims) as acquisition:
        api.event("MODIFIED", api.ready())
        claim = await acquisition
    api.faults["DELETE"] = [500, 503, 429, 403]

    await claims.discard(claim, wait=False)
    await wait_until_async(lambda: not api.claims)
    assert api.count("DELETE") == 5


@pytest.mark.parametrize("passes", range(4))
async def test_an_acquisition_that_is_cancelled_again_while_it_cleans_up_leaves_no_claim(api, open_claims, passes):
    """As for a client that disconnects from a server that is being stopped, while the pod does not answer."""
    claims = open_claims()
    sandboxes = KubernetesSandboxes(claims, PodConnector(claims, port=9, token=None))
    acquisition = asyncio.create_task(sandboxes.acquire(tenant="t", memory_limit="1g", timeout=60))
    await wait_until_async(lambda: api.watches)
    requests = api.count("GET")
    api.event("MODIFIED", api.ready("127.0.0.99"))
    await wait_until_async(lambda: api.count("GET") > requests)  # it has asked the pod, and looks at the claim again
    acquisition.cancel()
    for _ in range(passes):  # of the event loop
        await asyncio.sleep(0)
    acquisition.cancel()
    await asyncio.gather(acquisition, return_exceptions=True)

    await wait_until_async(lambda: not api.claims)
    await sandboxes.aclose()


async def test_a_renewal_that_fails_is_repeated(api, open_claims):
    claims = open_claims(lifetime=0.06)
    sandboxes = KubernetesSandboxes(claims, PodConnector(claims, port=9, token=None))
    async with acquiring(api, claims) as acquisition:
        api.event("MODIFIED", api.ready())
        held = ConnectedPod(await acquisition, RemoteSandboxes("http://127.0.0.1:9"))
    api.faults["PATCH"] = [500, None, 401, 403, 404, 409, 429]
    sandboxes._held.add(held)
    sandboxes._start_renewals()

    await wait_until_async(lambda: api.count("PATCH") > 7)
    await held.server.aclose()
    await sandboxes.aclose()


async def test_a_version_that_is_not_served_any_more_is_replaced(api, open_claims):
    claims = open_claims()
    for version, next_version in (("v1alpha1", "v1beta1"), ("v1beta1", "v1alpha1")):
        api.versions, api.watches = [version], 0
        async with acquiring(api, claims) as acquisition:
            api.event("MODIFIED", api.ready())
            held = await acquisition
        api.versions = [next_version]
        assert [await claims.loss_reason(held) for _ in range(2)] == [None, None]
        api.versions = [version]
        await claims.discard(held)
        assert api.claims == {}

    bodies = [one.body for one in api.requests if one.method == "POST"]
    created = [one for one in bodies if one["metadata"].get("uid")]
    assert [one["apiVersion"].rpartition("/")[2] for one in created] == ["v1alpha1", "v1beta1"]
    assert created[0]["spec"]["sandboxTemplateRef"] == {"name": "t"}
    assert created[1]["spec"]["warmPoolRef"] == {"name": "p"}


async def test_an_api_server_that_does_not_serve_claims_yet_after_its_start(api, open_claims):
    """It answers 404 for a moment, which does not mean that the claim is gone."""
    claims, versions = open_claims(), api.versions
    async with acquiring(api, claims) as acquisition:
        api.versions = []
        api.events.put_nowait(None)
        requests = api.count("GET")
        await wait_until_async(lambda: api.count("GET") > requests + 2)
        api.versions, api.watches = versions, 0
        await wait_until_async(lambda: api.watches)
        api.event("MODIFIED", api.ready())
        claim = await acquisition

    api.versions = []
    requests = api.count("GET")
    await claims.discard(claim, wait=False)
    await wait_until_async(lambda: api.count("GET") > requests + 1)
    assert list(api.claims) == [claim.metadata.name]
    api.versions = versions
    await wait_until_async(lambda: not api.claims)


async def test_without_agent_sandbox_the_error_says_so(api, open_claims):
    api.versions = ["v2"]
    with pytest.raises(SandboxUnavailable, match="serves no version of extensions"):
        await open_claims().acquire(30)
    assert api.count("DELETE") == 0


async def test_a_sweep_leaves_the_claims_of_this_process_alone(api, open_claims):
    claims = open_claims()
    async with acquiring(api, claims) as acquisition:
        api.event("MODIFIED", api.ready())
        claim = await acquisition
        assert await claims.sweep_own() == 0
        assert await claims.sweep(["one"]) == 0

        assert await open_claims().sweep_own() == 1
    assert api.claims == {}
    assert await claims.loss_reason(claim) == "The SandboxClaim was deleted, and its pod with it."


async def test_a_sweep_that_fails_at_start_is_repeated(api, open_claims, monkeypatch):
    monkeypatch.setattr(sandboxes, "_SWEEP_RETRY_SECONDS", 0.01)
    left = open_claims()
    await left._create(_Attempt("left"), 30)
    api.faults["GET"] = [503, 503]
    claims = open_claims()
    started = KubernetesSandboxes(claims, PodConnector(claims, port=1, token=None))
    with pytest.raises(SandboxUnavailable, match="answered 503"):
        await started.start()
    assert list(api.claims) == ["left"]

    await wait_until_async(lambda: not api.claims)
    await started.aclose()


@pytest.mark.parametrize("name", ["../../secrets/x", "a b", "a\r\nx-admin: 1", "é", "x" * 300])
async def test_a_name_and_an_address_of_another_form_are_not_used(api, open_claims, name):
    claims = open_claims()
    async with acquiring(api, claims) as acquisition:
        sandbox = {"name": name, "podIPs": ["10.0.0.1"]}
        api.event("MODIFIED", api.status("True", "DependenciesReady", sandbox=sandbox))
        sandbox = {"name": "adopted", "podIPs": ["evil.example/x?"]}
        api.event("MODIFIED", api.status("True", "DependenciesReady", sandbox=sandbox))
        claim = await acquisition

    assert (claim.sandbox_name, claim.pod_ip) == ("adopted", None)
    with pytest.raises(SandboxUnavailable, match="The Sandbox adopted cannot be read"):
        await claims.address(claim)
