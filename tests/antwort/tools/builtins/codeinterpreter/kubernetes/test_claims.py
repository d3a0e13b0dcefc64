from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
import yaml
from fake_claim_controller import EMPTY_POOL, POOL, UNKNOWN_POOL
from fixtures_kubernetes import DroppingProxy
from waiting import wait_until_async

from antwort.config import CodeInterpreterSettings
from antwort.containers.sandboxes.port import SandboxUnavailable
from antwort.tools.builtins.codeinterpreter.kubernetes.api import ApiRefused
from antwort.tools.builtins.codeinterpreter.kubernetes.claims import _Attempt
from antwort.tools.builtins.codeinterpreter.kubernetes.resources import Claim, ClaimedPod, ClaimStatus

pytestmark = [pytest.mark.anyio, pytest.mark.kubernetes]


@pytest.fixture(autouse=True)
async def refilled(controller):
    controller.refilled.clear()
    yield controller.refilled
    assert await controller.claims() == []


@asynccontextmanager
async def waiting_acquisition(claims, controller, seconds=60.0):
    """An acquisition whose claim exists, and waits for a warm pod."""
    acquisition = asyncio.create_task(claims.acquire(seconds))
    await controller.wait_for(lambda found: [claim for claim in found if "status" in claim])
    yield acquisition


async def test_a_claim_has_the_address_of_a_sandbox_with_another_name(controller, open_claims):
    claims = open_claims()
    claim = await claims.acquire(60)

    assert claim.sandbox_name.startswith(POOL)
    assert await claims.address(claim) == controller.pods[claim.metadata.name].ip
    await claims.discard(claim)


async def test_without_a_pod_address_the_service_of_the_sandbox_is_used(controller, open_claims, namespace):
    claims = open_claims()
    path = f"/apis/agents.x-k8s.io/v1beta1/namespaces/{namespace}/sandboxes"
    pod = {"spec": {"containers": [{"name": "sandbox", "image": "sandbox"}]}}
    body = {
        "apiVersion": "agents.x-k8s.io/v1beta1",
        "kind": "Sandbox",
        "metadata": {"name": "adopted"},
        "spec": {"podTemplate": pod},
    }
    await claims._api.request("POST", path, body=body)
    claim = Claim(status=ClaimStatus(sandbox=ClaimedPod("adopted")))
    with pytest.raises(SandboxUnavailable, match="Set `service: true` in the SandboxTemplate template"):
        await claims.address(claim)

    body = {"status": {"serviceFQDN": "adopted.example"}}
    content_type = "application/merge-patch+json"
    await claims._api.request("PATCH", f"{path}/adopted/status", body=body, content_type=content_type)
    assert await claims.address(claim) == "adopted.example"
    await claims._api.request("DELETE", f"{path}/adopted")


async def test_a_terminal_reason_fails_at_once_with_the_message_of_the_controller(controller, open_claims):
    with pytest.raises(SandboxUnavailable, match="has failed: WarmPoolNotFound: no SandboxWarmPool 'unknown'"):
        await open_claims(UNKNOWN_POOL).acquire(600)


async def test_an_exhausted_pool_is_named_with_the_last_reason(controller, open_claims, namespace):
    message = f"{namespace}/empty became ready within 1 s .SandboxMissing: the pool has no warm pod"
    with pytest.raises(SandboxUnavailable, match=message):
        await open_claims(EMPTY_POOL).acquire(1)


async def test_a_claim_that_is_deleted_by_hand(controller, open_claims):
    async with waiting_acquisition(open_claims(EMPTY_POOL), controller) as acquisition:
        [claim] = await controller.claims()
        await controller.delete(claim["metadata"]["name"])

        with pytest.raises(SandboxUnavailable, match="was deleted before its pod was ready"):
            await acquisition


async def test_a_version_that_is_too_old_is_watched_again(controller, open_claims):
    claims = open_claims(EMPTY_POOL)
    attempt = _Attempt("old")
    claim = await claims._create(attempt, 30)
    claim.metadata.resource_version = "1"
    watch = claims._api.watch(controller.path, name="old", resource_version="1", silence=30)
    with pytest.raises((ApiRefused, AssertionError), match="410"):
        raise AssertionError((await anext(watch)).decode())
    await watch.aclose()

    controller.refilled.set()
    async with asyncio.timeout(60):
        ready = await claims._wait_until_ready(claim, attempt)
    assert ready.is_ready
    await claims.discard(ready)


@pytest.fixture
async def proxied(kubeconfig, tmp_path):
    """A proxy to the API server, and a kubeconfig that uses it."""
    with open(kubeconfig, encoding="utf-8") as file:  # noqa: ASYNC230, PTH123 - a small file of the test
        config = yaml.safe_load(file)
    cluster = config["clusters"][0]["cluster"]
    address = urlsplit(cluster["server"])
    if address.hostname != "127.0.0.1":
        pytest.skip("the certificate of the API server is not valid for a proxy on loopback")
    proxy = DroppingProxy((address.hostname, address.port))
    cluster["server"] = f"https://127.0.0.1:{await proxy.start()}"
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config), encoding="utf-8")
    yield proxy, path
    await proxy.aclose()


async def test_a_dropped_watch_is_continued(controller, open_claims, proxied):
    proxy, config = proxied
    claims = open_claims(EMPTY_POOL, config=config)
    async with waiting_acquisition(claims, controller) as acquisition:
        for _ in range(3):
            accepted = proxy.accepted
            proxy.drop()
            await wait_until_async(lambda accepted=accepted: proxy.accepted > accepted)
        controller.refilled.set()
        await claims.discard(await acquisition)


async def test_an_api_server_that_is_restarted_while_a_claim_waits(controller, open_claims, proxied):
    proxy, config = proxied
    claims = open_claims(EMPTY_POOL, config=config)
    async with waiting_acquisition(claims, controller) as acquisition:
        await proxy.pause()
        controller.refilled.set()
        await controller.wait_for(lambda found: found[0]["status"]["conditions"][0]["status"] == "True")
        assert not acquisition.done()
        await proxy.resume()
        await claims.discard(await acquisition)


async def test_a_claim_that_is_released_while_the_api_server_is_down(controller, open_claims, proxied):
    proxy, config = proxied
    claims = open_claims(config=config)
    claim = await claims.acquire(60)
    await proxy.pause()
    await claims.discard(claim, wait=False)
    assert len(await controller.claims()) == 1
    await proxy.resume()
    await controller.wait_for(lambda found: not found)


async def test_a_claim_that_is_deleted_between_two_watches(controller, open_claims, proxied):
    proxy, config = proxied
    claims = open_claims(EMPTY_POOL, config=config)
    async with waiting_acquisition(claims, controller) as acquisition:
        [claim] = await controller.claims()
        deletion = asyncio.create_task(controller.delete(claim["metadata"]["name"]))
        proxy.drop()
        await deletion

        with pytest.raises(SandboxUnavailable, match="was deleted before its pod was ready"):
            await acquisition


async def test_a_silent_watch_is_opened_again(controller, open_claims, proxied):
    proxy, config = proxied
    claims = open_claims(EMPTY_POOL, config=config, silence=0.1)
    async with waiting_acquisition(claims, controller) as acquisition:
        accepted = proxy.accepted
        await wait_until_async(lambda: proxy.accepted > accepted + 2)
        controller.refilled.set()
        await claims.discard(await acquisition)


@pytest.mark.long
async def test_connections_that_become_silent_for_the_default_times(controller, open_claims, proxied):
    """The watch stays open without a byte, as do idle connections, while the claim becomes ready."""
    proxy, config = proxied
    claims = open_claims(EMPTY_POOL, config=config)
    async with waiting_acquisition(claims, controller, CodeInterpreterSettings().claim_timeout) as acquisition:
        proxy.silence()
        controller.refilled.set()
        await claims.discard(await acquisition)


@pytest.mark.long
async def test_an_api_server_that_is_silent_for_the_whole_time_to_wait(controller, open_claims, proxied):
    """Connections are opened, and no byte arrives for 30 s. The claim is deleted when there is an answer again."""
    proxy, config = proxied
    claims = open_claims(EMPTY_POOL, config=config)
    async with waiting_acquisition(claims, controller, CodeInterpreterSettings().claim_timeout) as acquisition:
        proxy.is_silent = True
        proxy.silence()
        controller.refilled.set()
        with pytest.raises(SandboxUnavailable, match="became ready within 30 s"):
            await acquisition
        assert len(await controller.claims()) == 1
        proxy.is_silent = False
        await controller.wait_for(lambda found: not found)


async def test_a_claim_of_the_same_name_with_another_uid_is_left_alone(controller, open_claims):
    claims = open_claims(EMPTY_POOL)
    claim = await claims._create(_Attempt("same"), 30)

    real, claim.metadata.uid = claim.metadata.uid, "00000000-0000-0000-0000-000000000000"
    await claims.discard(claim)
    assert len(await controller.claims()) == 1
    with pytest.raises(ApiRefused):
        await claims.renew(claim)
    assert "deleted" in (await claims.loss_reason(claim) or "")
    claim.metadata.uid = real
    await claims.discard(claim)


async def test_a_sweep_deletes_claims_of_ended_instances_and_expired_ones_and_no_others(controller, open_claims):
    for instance, lifetime in (("unknown", 900), ("ended", 900), ("expired", -120)):
        await open_claims(EMPTY_POOL, instance=instance, lifetime=lifetime)._create(_Attempt(instance), 30)

    claims = open_claims()
    assert await claims.sweep() == 1
    assert await claims.sweep(["ended"]) == 1
    assert await claims.sweep(["ended"]) == 0
    assert [claim["metadata"]["name"] for claim in await controller.claims()] == ["unknown"]
    assert await claims.sweep(["unknown"]) == 1
