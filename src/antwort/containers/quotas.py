"""Quotas of one owner's containers: their number, their memory, and the bytes of their files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

from antwort.api.errors import ApiError
from antwort.engine.stores import ContainerStore, ContainerUse, OverQuota, Owner, StoreFault
from antwort.telemetry import Metrics, log

_RESERVED_AT_ONCE = 4 * 1024 * 1024


class DiskQuota:
    """Disk quota that also counts uploads in progress: concurrent uploads share one quota, also those of replicas."""

    def __init__(
        self, store: ContainerStore, quota: ContainerUse, metrics: Metrics, clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._quota = quota
        self._metrics = metrics
        self._clock = clock

    async def check(self, owner: Owner, more: int = 0) -> None:
        """`ApiError` 429 where `more` bytes would exceed the quota."""
        used = await self._store.container_use(owner, self._clock())
        if used.disk + more > self._quota.disk:
            raise quota_error(OverQuota("disk"), self._quota)

    @asynccontextmanager
    async def metered(
        self, owner: Owner, container_id: str, content: AsyncIterator[bytes]
    ) -> AsyncGenerator[AsyncIterator[bytes]]:
        """The same content, whose bytes are reserved while it is read; `ApiError` 429 where they exceed the quota.

        The caller holds the lock of the container, and stores a change of its files before it leaves this: that ends
        the reservation. An exception ends it, too.
        """
        received = reserved = 0

        async def reserve() -> None:
            nonlocal reserved
            reserved = received
            if not await self._store.reserve_disk(owner, container_id, received, self._quota.disk, self._clock()):
                raise quota_error(OverQuota("disk"), self._quota)

        async def metered() -> AsyncIterator[bytes]:
            nonlocal received
            async for chunk in content:
                received += len(chunk)
                self._metrics.container_bytes.labels("in").inc(len(chunk))
                if received - reserved >= _RESERVED_AT_ONCE:
                    await reserve()
                yield chunk
            if received > reserved:
                await reserve()
            else:
                await self.check(owner)

        try:
            yield metered()
        except BaseException:
            if reserved:
                await asyncio.shield(asyncio.ensure_future(self._end_reservation(owner, container_id)))
            raise

    async def _end_reservation(self, owner: Owner, container_id: str) -> None:
        try:
            await self._store.reserve_disk(owner, container_id, 0, self._quota.disk, self._clock())
        except StoreFault:  # the next change of the container's files ends it
            log.warning("a reservation of disk could not be ended", container_id=container_id)


def quota_error(error: OverQuota, quota: ContainerUse) -> ApiError:
    """429 `insufficient_quota`. `x-should-retry: false`, since a retry does not help."""
    details = {
        "containers": f"{quota.containers} containers may run at a time. Delete one, or let one expire.",
        "memory": f"the memory limits of running containers may add up to {quota.memory} bytes. "
        "Delete one, or ask for a smaller memory limit.",
        "disk": f"the files in running containers may add up to {quota.disk} bytes. Delete files or containers.",
    }[error.what]
    message = f"You exceeded your quota of {error.what}: {details}"
    return ApiError(429, message, kind="insufficient_quota", code="insufficient_quota", should_retry=False)
