"""Write-behind buffer for the events of a background response and the steps of its checkpoint.

Stores them in order and in batches, and retries a refused batch. Without it each event would wait for a commit of its
own, and a locked database would stall the model. What is stored is always a prefix of what was added. What is not
stored when the response ends is written in the same transaction as its end, so a stored event stream is never missing a
part of an ended response.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from antwort.api.events import AnyEvent, to_sse
from antwort.engine.stores import Owner, ResponseStore, ResponseTakenOver, StoredStep, StoreFault

_logger = logging.getLogger(__name__)

MAX_WAITING = 64
FLUSH_TIMEOUT = 300.0
"""Seconds that `flush` waits for a store that refuses writes: a restart or a fail-over of the database is shorter."""
_RETRY_SECONDS = 0.5

Frame: TypeAlias = tuple[int, bytes]
"""A sequence number and its SSE frame."""


class EventBuffer:
    """Call `start` once, `add` for each event in order, and `close` before the end of the response is written."""

    def __init__(self, store: ResponseStore, owner: Owner, response_id: str) -> None:
        self.is_holding = False
        """Whether events are held back until the next step, to be stored in the same transaction."""
        self.flush_timeout = FLUSH_TIMEOUT
        self._store = store
        self._owner = owner
        self._response_id = response_id
        self._waiting: deque[Frame | StoredStep] = deque()
        self._held: list[Frame | StoredStep] = []
        """Not for the writer yet: held events, and steps that are stored together with the next event."""
        self._changed = asyncio.Condition()
        self._closing = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None

    def start(self, on_stored: Callable[[int], Awaitable[None]], on_taken_over: Callable[[], None]) -> None:
        """Start to write; `on_stored` receives the last sequence number that is in the store.

        `on_taken_over` is called if another replica works on the response: nothing is written any more.
        """
        self._writer = asyncio.create_task(self._write_until_closed(on_stored, on_taken_over))

    def note(self, step: StoredStep) -> None:
        """Take a step. It is stored together with the next event, or with `flush`."""
        self._held.append(step)
        self.is_holding = False

    async def add(self, event: AnyEvent) -> None:
        """Buffer an event. Waits while more than `MAX_WAITING` events are buffered."""
        self._held.append(_frame(event))
        if self.is_holding:
            return
        await self._release_held()
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._waiting) <= MAX_WAITING or self._closing.is_set())

    async def flush(self) -> None:
        """Wait until everything is stored; `StoreFault` if it is not in time. Without `start` nothing is stored."""
        if self._writer is None:
            return
        await self._release_held()
        try:
            async with asyncio.timeout(self.flush_timeout), self._changed:
                await self._changed.wait_for(lambda: not self._waiting or self._closing.is_set())
        except TimeoutError:
            pass
        if self._waiting:
            raise StoreFault("The store has refused the write for too long.")

    async def close(self, *final_events: AnyEvent) -> list[Frame]:
        """Stop writing; the frames that are not in the store, and those of the final events."""
        self._closing.set()
        async with self._changed:
            self._changed.notify_all()
        if self._writer is not None:
            await asyncio.wait([self._writer])
            if not self._writer.cancelled() and (error := self._writer.exception()) is not None:
                _logger.error("events of background response %s were not stored", self._response_id, exc_info=error)
        left = [one for one in (*self._waiting, *self._held) if not isinstance(one, StoredStep)]
        return [*left, *map(_frame, final_events)]

    async def _release_held(self) -> None:
        self._waiting.extend(self._held)
        self._held.clear()
        async with self._changed:
            self._changed.notify_all()

    async def _write_until_closed(
        self, on_stored: Callable[[int], Awaitable[None]], on_taken_over: Callable[[], None]
    ) -> None:
        try:
            await self._write_batches(on_stored, on_taken_over)
        finally:  # also after an error that is no refusal: nothing waits for a writer that is gone
            self._closing.set()
            async with self._changed:
                self._changed.notify_all()

    async def _write_batches(
        self, on_stored: Callable[[int], Awaitable[None]], on_taken_over: Callable[[], None]
    ) -> None:
        while batch := await self._next_batch():
            frames = [one for one in batch if not isinstance(one, StoredStep)]
            steps = [one for one in batch if isinstance(one, StoredStep)]
            try:
                await self._store.append_events(self._owner, self._response_id, frames, steps)
            except ResponseTakenOver:
                on_taken_over()
                return
            except StoreFault:
                _logger.warning("events of background response %s are stored later", self._response_id)
                await self._wait_to_retry()
                continue
            for _ in batch:
                self._waiting.popleft()
            async with self._changed:
                self._changed.notify_all()
            if frames:
                await on_stored(frames[-1][0])

    async def _next_batch(self) -> list[Frame | StoredStep]:
        """All that is buffered, once there is something; empty when the buffer is closed."""
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
