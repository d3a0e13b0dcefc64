"""Turns: so many at once, the others in order, one of each tenant after the other, so that nobody waits for a crowd."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator

from antwort.sandbox.errors import AtCapacity


class FairSemaphore:
    """Places for work that takes a while. Who waits longer than he likes gives up himself, by being cancelled."""

    def __init__(self, places: int, what: str, *, queue: int) -> None:
        self._free = places
        self._what = what
        self._queue = queue
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By tenant, whoever is next first."""

    @contextlib.asynccontextmanager
    async def place(self, tenant: str) -> AsyncGenerator[None]:
        await self._enter(tenant)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, tenant: str) -> None:
        if self._free:  # then nobody waits
            self._free -= 1
            return
        self._make_room(tenant)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._leave()  # the place came in the very moment we gave up
            else:
                self._forget(tenant, turn)
            raise

    def _make_room(self, tenant: str) -> None:
        """A full queue refuses, but not to a tenant with little in it: then the last of whoever has most gives way."""
        if sum(map(len, self._waiting.values())) < self._queue:
            return
        refusal = AtCapacity(f"at capacity (more than {self._queue} {self._what} are waiting)", 5)
        greedy = max(self._waiting, key=lambda name: len(self._waiting[name]), default=tenant)
        if len(self._waiting.get(greedy, ())) <= len(self._waiting.get(tenant, ())) + 1:
            raise refusal
        last = self._waiting[greedy].pop()
        last.set_exception(refusal)

    def _forget(self, tenant: str, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(tenant, deque())
        if turn in queue:
            queue.remove(turn)
        if not queue:
            self._waiting.pop(tenant, None)

    def _leave(self) -> None:
        """Give the place to the tenant whose turn it is, and send that tenant to the end; or give it back."""
        while self._waiting:
            tenant, queue = next(iter(self._waiting.items()))
            turn = queue.popleft()
            del self._waiting[tenant]
            if queue:
                self._waiting[tenant] = queue
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
