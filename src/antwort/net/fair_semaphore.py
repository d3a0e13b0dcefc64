"""Semaphore with a bounded queue and an optional wait time-out, granted round-robin across tenants."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator

from antwort.net.errors import QueueFull


class FairSemaphore:
    """Grants `slots` at a time. A tenant gets a second slot only after every other waiting tenant got one.

    When the queue is full, the last request of the tenant with the longest queue is rejected in favour of a tenant
    with a shorter one; otherwise the new request is rejected. `what` names the slots in `QueueFull`.
    """

    def __init__(
        self, slots: int, what: str, *, max_queue: int = 0, wait_timeout: float | None = None, retry_after: int = 1
    ) -> None:
        self._slots = slots
        self._what = what
        self._max_queue = max_queue
        self._wait_timeout = wait_timeout
        self._retry_after = retry_after
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        """Waiting requests by tenant. The first tenant gets the next slot."""
        self.in_use = 0

    @contextlib.asynccontextmanager
    async def slot(self, tenant: str = "") -> AsyncGenerator[None]:
        """Hold a slot for the duration of the block."""
        await self.acquire(tenant)
        try:
            yield
        finally:
            self.release()

    async def acquire(self, tenant: str = "") -> None:
        """Wait for a slot; `QueueFull` when the queue is full or the wait times out."""
        if self.in_use < self._slots:  # a released slot goes to the queue directly, so the queue is empty here
            self.in_use += 1
            return
        self._check_queue(tenant)
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(tenant, deque()).append(granted)
        try:
            async with asyncio.timeout(self._wait_timeout):
                await granted
        except (TimeoutError, asyncio.CancelledError) as error:
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                self.release()  # the slot was granted at the same moment
            else:
                self._remove(tenant, granted)
            if isinstance(error, TimeoutError):
                raise self._queue_full() from error
            raise

    def release(self) -> None:
        """Grant the slot to the next tenant in the round, which moves to the end; without waiters, free the slot."""
        while self._queues:
            tenant, queue = next(iter(self._queues.items()))
            granted = queue.popleft()
            del self._queues[tenant]
            if queue:
                self._queues[tenant] = queue
            if not granted.done():
                granted.set_result(None)
                return
        self.in_use -= 1

    def _check_queue(self, tenant: str) -> None:
        """Make space in a full queue by rejecting the last request of the longest queue, or raise `QueueFull`."""
        if sum(map(len, self._queues.values())) < self._max_queue:
            return
        longest = max(self._queues, key=lambda name: len(self._queues[name]), default=tenant)
        if len(self._queues.get(longest, ())) <= len(self._queues.get(tenant, ())) + 1:
            raise self._queue_full()
        rejected = self._queues[longest].pop()
        if not rejected.done():
            rejected.set_exception(self._queue_full())

    def _remove(self, tenant: str, granted: asyncio.Future[None]) -> None:
        queue = self._queues.get(tenant, deque())
        if granted in queue:
            queue.remove(granted)
        if not queue:
            self._queues.pop(tenant, None)

    def _queue_full(self) -> QueueFull:
        queue = f", queue of {self._max_queue}" if self._max_queue else ""
        return QueueFull(f"at capacity ({self.in_use + 1}/{self._slots} {self._what}{queue})", self._retry_after)
