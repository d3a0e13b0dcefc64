from __future__ import annotations

import asyncio

import pytest
from fixtures_sandbox_server import sandbox_server

from antwort.containers.sandboxes import remote
from antwort.containers.sandboxes.client import SandboxServer
from antwort.containers.sandboxes.port import SandboxFault
from antwort.containers.sandboxes.remote import RemoteSandboxes

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with sandbox_server(tmp_path_factory.mktemp("sandbox")) as server:
        yield server


def place(running, **options) -> RemoteSandboxes:
    return RemoteSandboxes(SandboxServer(running.url, token=running.token), **options)


async def acquired(sandboxes: RemoteSandboxes):
    return await sandboxes.acquire(tenant="t", memory_limit="1g", timeout=30)


async def test_closing_ends_what_is_held(running):
    sandboxes = place(running)
    for _ in range(3):
        await acquired(sandboxes)
    assert len(await asyncio.to_thread(running.sessions)) == 3
    await sandboxes.aclose()
    assert await asyncio.to_thread(running.sessions) == []


async def test_a_lease_that_nobody_renews_ends_the_session(running):
    """As of a process that was killed: it asks for nothing more."""
    forgetful = place(running, lease=1, beat=60)
    await acquired(forgetful)
    async with asyncio.timeout(20):
        while await asyncio.to_thread(running.sessions):  # noqa: ASYNC110 - another process, which tells nobody
            await asyncio.sleep(0.1)
    await forgetful.aclose()


async def test_a_lease_is_renewed_while_it_is_held(running):
    sandboxes = place(running, lease=1, beat=0.2)
    held = await acquired(sandboxes)
    await asyncio.sleep(3)
    assert len(await asyncio.to_thread(running.sessions)) == 1
    await sandboxes.release(held)
    await sandboxes.aclose()


async def test_the_usual_lease_outlives_several_renewals_that_are_missed():
    assert remote.BEAT * 5 < remote.LEASE


async def test_the_check_says_what_is_wrong(running):
    sandboxes = place(running)
    await sandboxes.check()
    await sandboxes.aclose()
    with pytest.raises(SandboxFault):
        await sandboxes.check()
