from __future__ import annotations

import asyncio
import signal

import pytest
from fake_claim_controller import EMPTY_POOL
from waiting import wait_until_async

from antwort.containers.sandboxes.port import SandboxLost, SandboxUnavailable
from antwort.testing.sandbox_backend import SandboxesConformance, result_of

pytestmark = [pytest.mark.anyio, pytest.mark.kubernetes]

ACQUIRE = {"tenant": "t", "memory_limit": "1g", "timeout": 60}


@pytest.fixture(scope="module")
def sandboxes(open_sandboxes):
    return open_sandboxes()


class TestClaimedPods(SandboxesConformance):
    pass


async def test_a_release_deletes_claim_and_pod(sandboxes, controller):
    sandbox = await sandboxes.acquire(**ACQUIRE)
    assert len(await controller.claims()) == 1

    await sandboxes.release(sandbox)

    assert await controller.claims() == []
    await wait_until_async(lambda: not controller.pods)


async def test_many_acquisitions_at_once_leave_no_claim_and_no_pod(sandboxes, controller):
    acquired = await asyncio.gather(*(sandboxes.acquire(**ACQUIRE) for _ in range(6)))
    assert {(await result_of(sandbox, "6 * 7")).echo for sandbox in acquired} == {"42"}
    assert len({pod.ip for pod in controller.pods.values()}) == 6

    await asyncio.gather(*(sandboxes.release(sandbox) for sandbox in acquired))

    assert await controller.claims() == []
    await wait_until_async(lambda: not controller.pods)


async def test_a_killed_pod_is_lost_with_its_reason(sandboxes, controller):
    sandbox = await sandboxes.acquire(**ACQUIRE)
    [claim] = await controller.claims()
    await controller.kill_pod(claim["metadata"]["name"])

    with pytest.raises(SandboxLost, match="PodFailed: the pod has ended"):
        await sandbox.list_files()
    await sandboxes.release(sandbox)
    assert await controller.claims() == []


async def test_a_pod_that_hangs_does_not_delay_its_release(sandboxes, controller):
    sandbox = await sandboxes.acquire(**ACQUIRE)
    [pod] = controller.pods.values()
    pod.process.send_signal(signal.SIGSTOP)

    async with asyncio.timeout(50):  # less than the read time-out of the sandbox API
        await sandboxes.release(sandbox)

    assert await controller.claims() == []
    await wait_until_async(lambda: not controller.pods)
    with pytest.raises(SandboxLost, match="released"):
        await sandbox.list_files()


async def test_a_sandbox_whose_claim_is_deleted_by_hand_is_lost(sandboxes, controller):
    sandbox = await sandboxes.acquire(**ACQUIRE)
    [claim] = await controller.claims()
    await controller.delete(claim["metadata"]["name"])
    await wait_until_async(lambda: not controller.pods)

    with pytest.raises(SandboxLost, match="SandboxClaim was deleted"):
        await sandbox.list_files()
    await sandboxes.release(sandbox)


async def test_a_pod_that_does_not_answer_but_is_ready_is_unavailable(open_sandboxes, controller):
    sandboxes = open_sandboxes(loss_timeout=0.5)
    sandbox = await sandboxes.acquire(**ACQUIRE)
    [(name, pod)] = controller.pods.items()
    controller.stop_reporting(name)
    await pod.kill()

    with pytest.raises(SandboxUnavailable):
        await sandbox.list_files()
    await sandboxes.release(sandbox)


async def test_a_cancelled_acquisition_leaves_no_claim(open_sandboxes, controller):
    acquisition = asyncio.create_task(open_sandboxes(EMPTY_POOL).acquire(**ACQUIRE))
    await controller.wait_for(len)

    acquisition.cancel()
    with pytest.raises(asyncio.CancelledError):
        await acquisition

    assert await controller.claims() == []


async def test_closing_releases_all_and_refuses_more(open_sandboxes, controller):
    sandboxes = open_sandboxes()
    await sandboxes.acquire(**ACQUIRE)

    await sandboxes.aclose()

    assert await controller.claims() == []
    with pytest.raises(SandboxUnavailable, match="stopping"):
        await sandboxes.acquire(**ACQUIRE)


async def test_the_start_deletes_only_claims_of_the_same_instance(open_sandboxes, controller):
    await open_sandboxes(instance="restarted").acquire(**ACQUIRE)
    other = open_sandboxes(instance="other")
    kept = await other.acquire(**ACQUIRE)

    await open_sandboxes(instance="restarted").start()

    [claim] = await controller.claims()
    assert claim["metadata"]["labels"] == {"antwort.dev/instance": "other"}
    await other.release(kept)


async def test_a_held_claim_is_renewed(open_sandboxes, controller):
    sandboxes = open_sandboxes(lifetime=6)
    sandbox = await sandboxes.acquire(**ACQUIRE)

    def shutdown_time(claims):
        return claims[0]["spec"]["lifecycle"]["shutdownTime"]

    created = shutdown_time(await controller.claims())
    await controller.wait_for(lambda found: shutdown_time(found) != created)  # it had the time of the acquisition too
    renewed = shutdown_time(await controller.claims())
    await controller.wait_for(lambda found: shutdown_time(found) > renewed)
    await sandboxes.release(sandbox)
