"""Background responses: tasks that run without a client, and streams that follow their stored events.

Without it a background response would end with the connection that started it, and a
client could not resume its stream at `starting_after`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from antwort.api.events import FINAL_EVENTS
from antwort.engine.driver import ResponseRun
from antwort.engine.stores import Owner, Store, StoreFault

_logger = logging.getLogger(__name__)


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

    async def notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()


@dataclass
class Background:
    """The background responses that run in this process."""

    store: Store
    _tasks: dict[str, _Task] = field(default_factory=dict[str, _Task])
    _closing: bool = False

    def launch(self, run: ResponseRun, *, on_end: Callable[[], None] = lambda: None) -> None:
        """Run a response in a task of its own; `on_end` is called when it has ended."""
        task = self._tasks[run.response.id] = _Task(run)
        task.task = asyncio.create_task(self._run(task), name=run.response.id)
        task.task.add_done_callback(lambda _: (task.started.set(), on_end()))

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
        """The SSE frames behind `after`: the stored ones, then new ones as they are stored, until the last."""
        while True:
            task = self._tasks.get(response_id)
            is_over = task is None or task.is_done
            frames = await self.store.read_events(owner, response_id, after)
            for number, frame in frames:
                yield frame
                after = number
            if frames and not self._closing:
                continue  # the store returns a limited number at a time
            if is_over or task is None or self._closing:
                return
            async with task.changed:
                while task.last_stored <= after and not task.is_done and not self._closing:
                    await task.changed.wait()

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

        run.event_buffer.start(on_stored)
        events = run.events()
        try:
            async for event in events:
                if not isinstance(event, FINAL_EVENTS):  # the last event is written together with the response
                    await run.event_buffer.add(event)
                task.started.set()
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
            await task.notify()
