"""Write-behind buffer for the events of a background response: stores them in batches, retries a refused batch.

Without it each event would wait for a commit of its own, and a locked database would stall
the model. What is not stored when the response ends is written in the same transaction as
its end, so a stored event stream is never missing a part of an ended response.
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

MAX_WAITING = 64
_RETRY_SECONDS = 0.5

Frame: TypeAlias = tuple[int, bytes]
"""A sequence number and its SSE frame."""


class EventBuffer:
    """Call `start` once, `add` for each event in order, and `close` before the end of the response is written."""

    def __init__(self, store: ResponseStore, owner: Owner, response_id: str) -> None:
        self._store = store
        self._owner = owner
        self._response_id = response_id
        self._waiting: deque[Frame] = deque()
        self._changed = asyncio.Condition()
        self._closing = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None

    def start(self, on_stored: Callable[[int], Awaitable[None]]) -> None:
        """Start to write; `on_stored` receives the last sequence number that is in the store."""
        self._writer = asyncio.create_task(self._write_batches(on_stored))

    async def add(self, event: AnyEvent) -> None:
        """Buffer an event. Waits while more than `MAX_WAITING` events are buffered."""
        self._waiting.append(_frame(event))
        async with self._changed:
            self._changed.notify_all()
            await self._changed.wait_for(lambda: len(self._waiting) <= MAX_WAITING or self._closing.is_set())

    async def close(self, *final_events: AnyEvent) -> list[Frame]:
        """Stop writing; the frames that are not in the store, and those of the final events."""
        self._closing.set()
        async with self._changed:
            self._changed.notify_all()
        if self._writer is not None:
            await asyncio.wait([self._writer])
        return [*self._waiting, *map(_frame, final_events)]

    async def _write_batches(self, on_stored: Callable[[int], Awaitable[None]]) -> None:
        while batch := await self._next_batch():
            try:
                await self._store.append_events(self._owner, self._response_id, batch)
            except StoreFault:
                _logger.warning("events of background response %s are stored later", self._response_id)
                await self._wait_to_retry()
                continue
            for _ in batch:
                self._waiting.popleft()
            async with self._changed:
                self._changed.notify_all()
            await on_stored(batch[-1][0])

    async def _next_batch(self) -> list[Frame]:
        """All buffered frames, once there are some; empty when the buffer is closed."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._waiting or self._closing.is_set())
        return [] if self._closing.is_set() else list(self._waiting)

    async def _wait_to_retry(self) -> None:
        try:
            async with asyncio.timeout(_RETRY_SECONDS):
                await self._closing.wait()
        except TimeoutError:
            pass


def _frame(event: AnyEvent) -> Frame:
    return event.sequence_number, to_sse(event)
