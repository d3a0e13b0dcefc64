from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from fixtures_containers import THEM, US, chunks

from antwort.api.errors import ApiError
from antwort.containers import ContainerSpec
from antwort.containers.quotas import DiskQuota, quota_error
from antwort.engine.stores import ContainerUse, OverQuota
from antwort.storage import open_store
from antwort.telemetry import Metrics

MIB = 1 << 20
MOST = ContainerUse(1, 2**30, 10 * MIB)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def disk(tmp_path):
    store = await open_store(f"sqlite:///{tmp_path / 'antwort.db'}", tmp_path / "blobs")
    yield DiskQuota(store, MOST, Metrics(), lambda: 0.0)
    await store.aclose()


async def taken(disk, owner, content) -> int:
    """How much of a content went through."""
    size = 0
    async with disk.metered(owner, content) as counted:
        async for piece in counted:
            size += len(piece)
    return size


async def test_what_is_within_the_quota_goes_through(disk):
    assert await taken(disk, US, chunks(b"a", b"", b"bc")) == 3
    assert await taken(disk, US, chunks(*[bytes(MIB)] * 10)) == 10 * MIB


async def test_what_is_over_it_is_stopped_on_its_way(disk):
    sent = []

    async def endless() -> AsyncIterator[bytes]:
        while True:
            sent.append(1)
            yield bytes(MIB)

    with pytest.raises(ApiError) as error:
        await taken(disk, US, endless())
    assert (error.value.status, error.value.should_retry) == (429, False)
    assert len(sent) <= 14
    with pytest.raises(ApiError):
        await taken(disk, US, chunks(bytes(10 * MIB + 1)))


async def test_what_comes_at_once_shares_one_quota_and_others_have_their_own(disk):
    arrived = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield bytes(6 * MIB)
        await arrived.wait()

    first = asyncio.ensure_future(taken(disk, US, slow()))
    await asyncio.sleep(0.05)
    with pytest.raises(ApiError):
        await taken(disk, US, chunks(bytes(6 * MIB)))
    assert await taken(disk, THEM, chunks(bytes(6 * MIB))) == 6 * MIB
    arrived.set()
    assert await first == 6 * MIB
    await disk.check(US, 10 * MIB)  # nothing is counted any more


async def test_what_fails_is_not_counted_any_more(disk):
    async def torn() -> AsyncIterator[bytes]:
        yield bytes(6 * MIB)
        raise ConnectionResetError

    for _ in range(3):
        with pytest.raises(ConnectionResetError):
            await taken(disk, US, torn())
    await disk.check(US, 10 * MIB)


@pytest.mark.parametrize("what", ["containers", "memory", "disk"])
def test_a_refusal_says_what_to_do(what):
    error = quota_error(OverQuota(what), MOST)

    assert error.headers() == {"x-should-retry": "false"}
    assert "Delete" in error.message


async def test_files_in_containers_count(env):
    containers = env.restart(max_disk=1000)
    container = await containers.create(US, ContainerSpec(name="x"))
    await containers.add_file(US, container.id, "a", chunks(bytes(600)))
    with pytest.raises(ApiError):
        await containers.add_file(US, container.id, "b", chunks(bytes(600)))
    await containers.add_file(US, container.id, "a", chunks(bytes(300)))
    await containers.add_file(US, container.id, "b", chunks(bytes(600)))
    await containers.aclose()
