"""Background responses: tasks that run without a client, and streams that follow their stored events.

Without it a background response would end with the connection that started it, and a
client could not resume its stream at `starting_after`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from antwort.api.errors import unavailable
from antwort.api.events import FINAL_EVENTS
from antwort.engine.driver import ResponseRun
from antwort.engine.replicas.endings import store_end
from antwort.engine.stores import Owner, ResponseTakenOver, Store, StoreFault

T = TypeVar("T")

_logger = logging.getLogger(__name__)

_CANCEL_TIMEOUT = 15.0
_MIN_POLL = 0.2
_MAX_POLL = 1.0
_POLL_GROWTH = 1.2
_MAX_OUTAGE = 120.0
"""Seconds that a follower waits for a store that is away."""


@dataclass
class _Task:
    run: ResponseRun
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    task: asyncio.Task[None] | None = None
    started: asyncio.Event = field(default_factory=asyncio.Event)
    last_stored: int = -1  # the last sequence number that is in the store
    is_ending: bool = False
    is_done: bool = False

    def stop(self) -> None:
        """Cancel the task, once: a second cancellation would cut short what it writes at its end."""
        if self.task is not None and not self.is_ending:
            self.is_ending = True
            self.task.cancel()

    def abandon(self) -> None:
        """Cancel the task, and leave the response as it is stored."""
        self.run.is_taken_over = True
        self.stop()

    async def notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()


@dataclass
class Background:
    """The background responses that run in this process. `end` and `follow` work for those of other replicas too."""

    store: Store
    launching: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a response of an ended process is stored as resumed and launched here, or ended."""
    _tasks: dict[str, _Task] = field(default_factory=dict[str, _Task])
    _closing: bool = False

    def launch(self, run: ResponseRun, *, on_end: Callable[[], None] = lambda: None) -> None:
        """Run a response in a task of its own; `on_end` is called when it has ended."""
        task = self._tasks[run.response.id] = _Task(run)
        task.task = asyncio.create_task(self._run(task), name=run.response.id)
        task.task.add_done_callback(lambda _: (task.started.set(), on_end()))

    @property
    def running(self) -> int:
        return len(self._tasks)

    @property
    def known_ids(self) -> set[str]:
        """The responses that this process works on, also those that it stops or has just begun."""
        return set(self._tasks)

    @property
    def running_ids(self) -> set[str]:
        return {identifier for identifier, task in self._tasks.items() if task.started.is_set()}

    def abandon(self, response_id: str) -> None:
        """Stop the work on a response that does not belong to this process any more, and write nothing of it."""
        task = self._tasks.get(response_id)
        if task is not None:
            task.abandon()

    def stop(self, response_id: str) -> None:
        """Cancel a response, without a wait for its end."""
        task = self._tasks.get(response_id)
        if task is not None and task.started.is_set():
            task.stop()

    async def end(self, owner: Owner, response_id: str) -> None:
        """Cancel a response, on whatever replica it runs, and wait until its end is stored.

        `ApiError` 503 if its replica does not end it in time: the request stays stored.
        """
        try:
            async with asyncio.timeout(_CANCEL_TIMEOUT):
                await self._end_in_time(owner, response_id)
        except TimeoutError as error:
            message = "The replica of the server that runs this response has not ended it yet. Try again."
            raise unavailable(message, retry_after=2) from error

    async def _end_in_time(self, owner: Owner, response_id: str) -> None:
        while True:
            await self.cancel(response_id)
            replica = await self.store.request_cancel(owner, response_id)
            if replica is None:
                return
            if replica == self.store.replica_id:
                async with self.launching:  # it may be about to be launched
                    if response_id not in self._tasks:
                        await self._end_without_task(owner, response_id)
            else:
                await asyncio.sleep(_MIN_POLL)

    async def _end_without_task(self, owner: Owner, response_id: str) -> None:
        """End a response of this process whose end could not be stored."""
        stored = await self.store.get_response(owner, response_id)
        if stored is not None and not stored.response.ended:
            cancelled = msgspec.structs.replace(stored.response, status="cancelled")
            with suppress(ResponseTakenOver):  # its end was stored meanwhile; the caller looks again
                await store_end(self.store, owner, stored, cancelled)

    async def cancel(self, response_id: str) -> bool:
        """Cancel a response and wait for its end; False if it does not run. Its followers receive the last event."""
        task = self._tasks.get(response_id)
        if task is None or task.task is None:
            return False
        await task.started.wait()  # a generator that has not started would not store an end
        task.stop()
        await asyncio.wait([task.task])
        return True

    async def follow(self, owner: Owner, response_id: str, after: int) -> AsyncGenerator[bytes]:
        """The SSE frames behind `after`: the stored ones, then new ones as they are stored, until the last.

        Those of a response that runs on another replica are polled from the store.
        """
        poll, has_ended = _MIN_POLL, False
        while True:
            task = self._tasks.get(response_id)
            frames = await self._read_frames(owner, response_id, after)
            for number, frame in frames:
                yield frame
                after = number
            if self._closing:
                return
            if frames:  # the store returns a limited number at a time
                poll = _MIN_POLL
            elif task is not None and not task.is_done:
                async with task.changed:
                    while task.last_stored <= after and not task.is_done and not self._closing:
                        await task.changed.wait()
            elif has_ended:
                return
            elif await self._is_unfinished(owner, response_id):
                await asyncio.sleep(poll)
                poll = min(_MAX_POLL, poll * _POLL_GROWTH)
            else:
                has_ended = True  # its last events were stored with its end: they are read once more

    async def _read_frames(self, owner: Owner, response_id: str, after: int) -> list[tuple[int, bytes]]:
        return await self._while_store_is_away(lambda: self.store.read_events(owner, response_id, after))

    async def _is_unfinished(self, owner: Owner, response_id: str) -> bool:
        return await self._while_store_is_away(lambda: self.store.is_unfinished(owner, response_id))

    async def _while_store_is_away(self, read: Callable[[], Awaitable[T]]) -> T:
        """Read again while the store cannot be used, up to `_MAX_OUTAGE`: a follower waits, as the response does."""
        deadline = asyncio.get_running_loop().time() + _MAX_OUTAGE
        while True:
            try:
                return await read()
            except StoreFault:
                if self._closing or asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(_MAX_POLL)

    async def stop_following(self) -> None:
        """Server shutdown: end the streams of followers, which may resume after the next start."""
        self._closing = True
        for task in list(self._tasks.values()):
            await task.notify()

    async def aclose(self) -> None:
        """Stop all tasks. The next start resumes what is unfinished."""
        await self.stop_following()
        tasks: list[asyncio.Task[None]] = []
        for task in self._tasks.values():
            task.run.server_stopping = True
            if task.task is not None:
                task.stop()
                tasks.append(task.task)
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, task: _Task) -> None:
        """Run the response and store its events, at the pace of the store."""
        run = task.run

        async def on_stored(number: int) -> None:
            task.last_stored = number
            await task.notify()

        run.event_buffer.start(on_stored, task.abandon)
        events = run.events()
        task.started.set()  # the generator begins before anything else runs, because nothing is awaited in between
        try:
            async for event in events:
                if not isinstance(event, FINAL_EVENTS):  # the last event is written together with the response
                    await run.event_buffer.add(event)
        except ResponseTakenOver:
            pass  # logged below
        except StoreFault:
            _logger.warning("background response %s is not stored yet", run.response.id)
        except Exception:  # the outermost loop of a task that is not awaited
            _logger.exception("background response %s failed", run.response.id)
        finally:
            task.is_ending = True
            await events.aclose()
            await run.event_buffer.close()
            task.is_done = True
            self._tasks.pop(run.response.id, None)
            if run.is_taken_over:
                _logger.warning("background response %s was taken over by another replica", run.response.id)
            await task.notify()
