"""What one owner's containers may take: how many, how much memory, how many bytes of files."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

from antwort.api.errors import ApiError
from antwort.engine.stores import (
    ContainerStore,
    ContainerUse,
    OverQuota,
    Owner,
)
from antwort.telemetry import Metrics

_STEP = 4 * 1024 * 1024  # bytes that may come before the quota is looked at again


class Disk:
    """Counts files on their way in, beside those that are there: many uploads at once share one quota."""

    def __init__(self, store: ContainerStore, most: ContainerUse, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._store = store
        self._most = most
        self._metrics = metrics
        self._clock = clock
        self._coming: Counter[str] = Counter()

    async def check(self, owner: Owner, more: int = 0) -> None:
        """Whether there is room for so many bytes more; `ApiError` 429 where there is not."""
        used = await self._store.container_use(owner, self._clock())
        if used.disk + self._coming[owner.tenant] + more > self._most.disk:
            raise over_quota(OverQuota("disk"), self._most)

    @asynccontextmanager
    async def arriving(self, owner: Owner, content: AsyncIterator[bytes]) -> AsyncGenerator[AsyncIterator[bytes]]:
        """The same content, counted until this is left: by then it has to be written down what came of it."""
        taken = [0]

        async def counted() -> AsyncIterator[bytes]:
            unseen = 0
            async for piece in content:
                taken[0] += len(piece)
                unseen += len(piece)
                self._coming[owner.tenant] += len(piece)
                self._metrics.container_bytes.labels("in").inc(len(piece))
                if unseen >= _STEP:
                    unseen = 0
                    await self.check(owner)
                yield piece
            await self.check(owner)

        try:
            yield counted()
        finally:
            self._coming[owner.tenant] -= taken[0]
            if not self._coming[owner.tenant]:
                del self._coming[owner.tenant]


def over_quota(error: OverQuota, most: ContainerUse) -> ApiError:
    """What the caller is told; trying again does not help, so that nobody's SDK does."""
    said = {
        "containers": f"{most.containers} containers may run at a time. Delete one, or let one expire.",
        "memory": f"the memory limits of running containers may add up to {most.memory} bytes. "
        "Delete one, or ask for a smaller memory limit.",
        "disk": f"the files in running containers may add up to {most.disk} bytes. Delete files or containers.",
    }[error.what]
    message = f"You exceeded your quota of {error.what}: {said}"
    return ApiError(429, message, kind="insufficient_quota", code="insufficient_quota", should_retry=False)
