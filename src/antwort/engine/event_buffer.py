"""The events of a background response on their way into the store: in batches, as fast as the store takes them.

A batch that the store refuses is tried again. What is not kept when the response ends is
not lost either: it is written together with the end, so that a kept stream is whole or its
response is not over.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from antwort.api.events import AnyEvent, to_sse
from antwort.engine.stores import Owner, ResponseStore, StoreFault

_logger = logging.getLogger(__name__)

BATCH = 64
_PAUSE = 0.5

Frame: TypeAlias = tuple[int, bytes]


class EventBuffer:
    """Begin it once; `add` events in their order; `close` it before the end is written."""

    def __init__(self, store: ResponseStore, owner: Owner, response_id: str) -> None:
        self._store = store
        self._owner = owner
        self._id = response_id
        self._waiting: deque[Frame] = deque()
        self._news = asyncio.Condition()
        self._closing = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    def begin(self, kept: Callable[[int], Awaitable[None]]) -> None:
        """Keep what is added; `kept` is told the last number that is in the store."""
        self._keeper = asyncio.create_task(self._keep(kept))

    async def add(self, event: AnyEvent) -> None:
        """Keep an event. Returns at once, unless a whole batch waits already."""
        self._waiting.append(_frame(event))
        async with self._news:
            self._news.notify_all()
            await self._news.wait_for(lambda: len(self._waiting) <= BATCH or self._closing.is_set())

    async def close(self, *last: AnyEvent) -> list[Frame]:
        """Keep no more: the frames that are not in the store, and those of the last events."""
        self._closing.set()
        async with self._news:
            self._news.notify_all()
        if self._keeper is not None:
            await asyncio.wait([self._keeper])
        return [*self._waiting, *map(_frame, last)]

    async def _keep(self, kept: Callable[[int], Awaitable[None]]) -> None:
        while batch := await self._next():
            try:
                await self._store.append_events(self._owner, self._id, batch)
            except StoreFault:
                _logger.warning("events of background response %s are kept later", self._id)
                await self._pause()
                continue
            for _ in batch:
                self._waiting.popleft()
            async with self._news:
                self._news.notify_all()
            await kept(batch[-1][0])

    async def _next(self) -> list[Frame]:
        """What waits, once something does; nothing when it is over."""
        async with self._news:
            await self._news.wait_for(lambda: self._waiting or self._closing.is_set())
        return [] if self._closing.is_set() else list(self._waiting)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(_PAUSE):
                await self._closing.wait()
        except TimeoutError:
            pass


def _frame(event: AnyEvent) -> Frame:
    return event.sequence_number, to_sse(event)
