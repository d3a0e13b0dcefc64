"""Rate and concurrency limits of API keys that hold across all replicas of a store.

A key without limits costs no query. While the store is away, `StoreFault`: requests are refused, not unlimited.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from antwort.auth import Caller, RateLimitState, concurrency_limit_reached, rate_limit_reached
from antwort.engine.replicas.port import ReplicaStore
from antwort.engine.stores import StoreFault

_RELEASE_WAIT = 0.1
_RETRY_SECONDS = 1.0


class StoreRateLimiter:
    """A `RateLimiter` on the store. A running response is a slot; it is free when its replica has ended."""

    def __init__(self, store: ReplicaStore, replica_id: str) -> None:
        self._store = store
        self._replica_id = replica_id
        self._releases: set[asyncio.Task[None]] = set()

    async def take(self, caller: Caller) -> RateLimitState | None:
        limit = caller.requests_per_minute
        if limit is None:
            return None
        bucket = await self._store.take_request(caller.key_id, limit)
        if not bucket.is_granted:
            raise rate_limit_reached(limit, bucket.tokens)
        return RateLimitState(limit, int(bucket.tokens), (limit - bucket.tokens) * 60 / limit)

    async def begin(self, caller: Caller) -> Callable[[], None]:
        limit = caller.concurrent_responses
        if limit is None:
            return lambda: None
        release = await self._take_slot(caller, limit)
        if release is None and self._releases:
            # The answer before this request may have been received before its slot was freed, here or elsewhere.
            await asyncio.wait([*self._releases], timeout=_RETRY_SECONDS)
        if release is None:
            await asyncio.sleep(_RELEASE_WAIT)
            release = await self._take_slot(caller, limit)
        if release is None:
            raise concurrency_limit_reached(limit)
        return release

    async def resume(self, caller: Caller) -> Callable[[], None]:
        if caller.concurrent_responses is None:
            return lambda: None
        release = await self._take_slot(caller, None)
        assert release is not None  # noqa: S101 - there is no limit
        return release

    async def aclose(self) -> None:
        """Stop to free slots: those of a process that has ended do not count."""
        releases = list(self._releases)
        for task in releases:
            task.cancel()
        await asyncio.gather(*releases, return_exceptions=True)

    async def _take_slot(self, caller: Caller, most: int | None) -> Callable[[], None] | None:
        """Take a slot; its idempotent release, None if there are `most` already."""
        slots = [secrets.token_hex(16)]
        taking = asyncio.ensure_future(self._store.take_slot(caller.key_id, slots[0], self._replica_id, most))

        def release() -> None:
            while slots:
                task = asyncio.create_task(self._free(slots.pop(), taking))
                self._releases.add(task)
                task.add_done_callback(self._releases.discard)

        try:
            if await asyncio.shield(taking):
                return release
        except BaseException:  # also a cancellation: the slot may have been taken, or be taken later
            release()
            raise
        return None

    async def _free(self, slot: str, taking: asyncio.Future[bool]) -> None:
        await asyncio.wait({taking})  # a slot that is taken behind its deletion would stay
        while True:
            try:
                return await self._store.free_slots([slot])
            except StoreFault:
                await asyncio.sleep(_RETRY_SECONDS)
