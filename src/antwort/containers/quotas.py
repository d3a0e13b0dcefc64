"""Quotas of one owner's containers: their number, their memory, and the bytes of their files."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

from antwort.api.errors import ApiError
from antwort.engine.stores import ContainerStore, ContainerUse, OverQuota, Owner
from antwort.telemetry import Metrics

_CHECK_INTERVAL_BYTES = 4 * 1024 * 1024


class DiskQuota:
    """Disk quota that also counts uploads in progress: concurrent uploads share one quota."""

    def __init__(
        self, store: ContainerStore, quota: ContainerUse, metrics: Metrics, clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._quota = quota
        self._metrics = metrics
        self._clock = clock
        self._uploading: Counter[str] = Counter()
        """Bytes of uploads in progress, by tenant."""

    async def check(self, owner: Owner, more: int = 0) -> None:
        """`ApiError` 429 where `more` bytes would exceed the quota."""
        used = await self._store.container_use(owner, self._clock())
        if used.disk + self._uploading[owner.tenant] + more > self._quota.disk:
            raise quota_error(OverQuota("disk"), self._quota)

    @asynccontextmanager
    async def metered(self, owner: Owner, content: AsyncIterator[bytes]) -> AsyncGenerator[AsyncIterator[bytes]]:
        """The same content, counted as an upload in progress until this is left; then its records must be stored."""
        received = 0

        async def metered() -> AsyncIterator[bytes]:
            nonlocal received
            unchecked = 0
            async for chunk in content:
                received += len(chunk)
                unchecked += len(chunk)
                self._uploading[owner.tenant] += len(chunk)
                self._metrics.container_bytes.labels("in").inc(len(chunk))
                if unchecked >= _CHECK_INTERVAL_BYTES:
                    unchecked = 0
                    await self.check(owner)
                yield chunk
            await self.check(owner)

        try:
            yield metered()
        finally:
            self._uploading[owner.tenant] -= received
            if not self._uploading[owner.tenant]:
                del self._uploading[owner.tenant]


def quota_error(error: OverQuota, quota: ContainerUse) -> ApiError:
    """429 `insufficient_quota`. A retry does not help, so the SDK is told not to retry."""
    details = {
        "containers": f"{quota.containers} containers may run at a time. Delete one, or let one expire.",
        "memory": f"the memory limits of running containers may add up to {quota.memory} bytes. "
        "Delete one, or ask for a smaller memory limit.",
        "disk": f"the files in running containers may add up to {quota.disk} bytes. Delete files or containers.",
    }[error.what]
    message = f"You exceeded your quota of {error.what}: {details}"
    return ApiError(429, message, kind="insufficient_quota", code="insufficient_quota", should_retry=False)
