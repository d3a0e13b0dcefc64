"""Pods that have only the base protocol: the conformance suite, and a claim for each execution."""

from __future__ import annotations

import pytest
from fake_base_sandbox import NEEDS_A_SESSION
from fake_claim_controller import BASE_POOL

from antwort.containers.sandboxes.port import SandboxUnavailable
from antwort.testing.sandbox_backend import SandboxesConformance, result_of

pytestmark = [pytest.mark.anyio, pytest.mark.kubernetes]

ACQUIRE = {"tenant": "t", "memory_limit": "1g", "timeout": 60}


@pytest.fixture(scope="module")
def sandboxes(open_sandboxes):
    return open_sandboxes(BASE_POOL)


class TestClaimedBaseProtocolPods(SandboxesConformance):
    pass


for name in NEEDS_A_SESSION:
    assert hasattr(SandboxesConformance, name), name
    setattr(TestClaimedBaseProtocolPods, name, None)


async def test_a_base_protocol_sandbox_has_no_claim_between_its_executions(open_sandboxes, controller):
    sandboxes = open_sandboxes(BASE_POOL)
    sandbox = await sandboxes.acquire(**ACQUIRE)
    assert not await sandboxes.is_stateful()
    await controller.wait_for(lambda found: not found)  # that of the pod that revealed the protocol

    await result_of(sandbox, "1")
    await controller.wait_for(lambda found: not found)
    other = await sandboxes.acquire(**ACQUIRE)
    assert await controller.claims() == []
    await result_of(other, "1")
    await controller.wait_for(lambda found: not found)
    for one in (sandbox, other):
        await sandboxes.release(one)


async def test_a_pod_that_ends_during_an_execution_is_named_and_the_files_stay(sandboxes, controller):
    sandbox = await sandboxes.acquire(**ACQUIRE)
    save = "import os; open(os.environ['OUTPUT_DIR'] + '/kept', 'w').write('x')"
    await result_of(sandbox, save)
    await controller.wait_for(lambda found: not found)
    controller.breaks = True
    try:
        with pytest.raises(SandboxUnavailable, match=r"pod of this execution was lost: .*PodFailed"):
            await result_of(sandbox, "1")
    finally:
        controller.breaks = False
    assert [file.path for file in await sandbox.list_files()] == ["kept"]
    await sandboxes.release(sandbox)
