from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from fixtures_containers import OTHER_OWNER, OWNER, chunks

from antwort.api.errors import ApiError
from antwort.containers import ContainerSpec
from antwort.containers.quotas import DiskQuota, quota_error
from antwort.engine.stores import ContainerRecord, ContainerUse, OverQuota
from antwort.storage import open_store
from antwort.telemetry import Metrics

MIB = 1 << 20
MOST = ContainerUse(1, 2**30, 10 * MIB)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def disk(tmp_path):
    store = await open_store(f"sqlite:///{tmp_path / 'antwort.db'}", tmp_path / "blobs")
    for owner, container_id in ((OWNER, "cntr_1"), (OWNER, "cntr_2"), (OTHER_OWNER, "cntr_1")):
        await store.create_container(owner, record(container_id), ContainerUse(9, 2**40, 0), 0.0)
    yield DiskQuota(store, MOST, Metrics(), lambda: 0.0)
    await store.aclose()


def record(container_id: str) -> ContainerRecord:
    return ContainerRecord(
        id=container_id,
        name="x",
        created_at=0,
        last_active_at=0.0,
        expires_after=60.0,
        memory_limit="1g",
        memory=2**30,
    )


async def taken(disk, owner, content, container_id="cntr_1") -> int:
    """The number of bytes that passed. Afterwards the files are stored; here it is none."""
    size = 0
    async with disk.metered(owner, container_id, content) as counted:
        async for piece in counted:
            size += len(piece)
        await disk._store.change_container_files(owner, container_id, put=[])
    return size


async def test_content_within_the_quota_passes(disk):
    assert await taken(disk, OWNER, chunks(b"a", b"", b"bc")) == 3
    assert await taken(disk, OWNER, chunks(*[bytes(MIB)] * 10)) == 10 * MIB


async def test_content_over_the_quota_is_stopped(disk):
    sent = []

    async def endless() -> AsyncIterator[bytes]:
        while True:
            sent.append(1)
            yield bytes(MIB)

    with pytest.raises(ApiError) as error:
        await taken(disk, OWNER, endless())
    assert (error.value.status, error.value.should_retry) == (429, False)
    assert len(sent) <= 14
    with pytest.raises(ApiError):
        await taken(disk, OWNER, chunks(bytes(10 * MIB + 1)))


async def test_concurrent_uploads_of_a_tenant_share_one_quota(disk):
    arrived = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield bytes(6 * MIB)
        await arrived.wait()

    first = asyncio.ensure_future(taken(disk, OWNER, slow()))
    await asyncio.sleep(0.05)
    with pytest.raises(ApiError):
        await taken(disk, OWNER, chunks(bytes(6 * MIB)), "cntr_2")
    assert await taken(disk, OTHER_OWNER, chunks(bytes(6 * MIB))) == 6 * MIB
    arrived.set()
    assert await first == 6 * MIB
    await disk.check(OWNER, 10 * MIB)  # nothing is counted any more


async def test_a_failed_upload_is_no_longer_counted(disk):
    async def torn() -> AsyncIterator[bytes]:
        yield bytes(6 * MIB)
        raise ConnectionResetError

    for _ in range(3):
        with pytest.raises(ConnectionResetError):
            await taken(disk, OWNER, torn())
    await disk.check(OWNER, 10 * MIB)


@pytest.mark.parametrize("what", ["containers", "memory", "disk"])
def test_a_quota_error_says_what_to_do(what):
    error = quota_error(OverQuota(what), MOST)

    assert error.headers() == {"x-should-retry": "false"}
    assert "Delete" in error.message


async def test_files_in_containers_count_towards_the_quota(env):
    containers = env.restart(max_disk=1000)
    container = await containers.create(OWNER, ContainerSpec(name="x"))
    await containers.add_file(OWNER, container.id, "a", chunks(bytes(600)))
    with pytest.raises(ApiError):
        await containers.add_file(OWNER, container.id, "b", chunks(bytes(600)))
    await containers.add_file(OWNER, container.id, "a", chunks(bytes(300)))
    await containers.add_file(OWNER, container.id, "b", chunks(bytes(600)))
    await containers.aclose()
