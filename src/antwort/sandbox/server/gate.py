"""Admission: so many at once, so many waiting, one of each tenant after the other, and a clear no to the rest."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator

from antwort.sandbox.errors import AtCapacity


class Gate:
    """Places, handed out in order, but to no tenant twice while another waits."""

    def __init__(self, places: int, what: str, *, queue: int = 0, seconds: float = 0.0) -> None:
        self._places = places
        self._what = what
        self._queue = queue
        self._seconds = seconds
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By tenant, whoever is next first."""
        self.taken = 0

    @contextlib.asynccontextmanager
    async def place(self, tenant: str = "") -> AsyncGenerator[None]:
        await self.enter(tenant)
        try:
            yield
        finally:
            self.leave()

    async def enter(self, tenant: str = "") -> None:
        if self.taken < self._places and not self._waiting:
            self.taken += 1
            return
        if sum(map(len, self._waiting.values())) >= self._queue:
            raise self._full()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        try:
            await asyncio.wait_for(turn, self._seconds)
        except (TimeoutError, asyncio.CancelledError) as error:
            if not self._forget(tenant, turn) and turn.done() and not turn.cancelled():
                self.leave()  # the place came in the very moment we gave up
            if isinstance(error, TimeoutError):
                raise self._full() from error
            raise

    def leave(self) -> None:
        """Give the place to the tenant whose turn it is, and send that tenant to the end; or give it back."""
        while self._waiting:
            tenant = next(iter(self._waiting))
            queue = self._waiting.pop(tenant)
            turn = queue.popleft()
            if queue:
                self._waiting[tenant] = queue
            if not turn.done():
                turn.set_result(None)
                return
        self.taken -= 1

    def _forget(self, tenant: str, turn: asyncio.Future[None]) -> bool:
        """Whether it was still waiting."""
        queue = self._waiting.get(tenant, deque())
        if turn not in queue:
            return False
        queue.remove(turn)
        if not queue:
            del self._waiting[tenant]
        return True

    def _full(self) -> AtCapacity:
        return AtCapacity(f"at capacity ({self.taken + 1}/{self._places} {self._what})")
