"""Responses that go on without their caller. Their events are kept, so that anybody may follow, from any point."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from antwort.api.events import AnyEvent, to_sse
from antwort.engine.engine import Work
from antwort.engine.ports import Owner, Store, StoreFault

_logger = logging.getLogger(__name__)

_BATCH = 64

Frames: TypeAlias = "asyncio.Queue[tuple[int, bytes] | None]"


@dataclass
class _Running:
    work: Work
    news: asyncio.Condition = field(default_factory=asyncio.Condition)
    task: asyncio.Task[None] | None = None
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    sent: int = -1  # the last sequence number that is in the store
    ending: bool = False
    done: bool = False

    def stop(self) -> None:
        """Cancel it, once: what it does at its end must not be cut short."""
        if self.task is not None and not self.ending:
            self.ending = True
            self.task.cancel()


@dataclass
class Background:
    """The responses that are under way in this process."""

    store: Store
    _running: dict[str, _Running] = field(default_factory=dict[str, _Running])
    _closing: bool = False

    def launch(self, work: Work, *, ended: Callable[[], None] = lambda: None) -> None:
        """Let it go on by itself; `ended` is called when it is over."""
        running = self._running[work.response.id] = _Running(work)
        running.task = asyncio.create_task(self._run(work, running), name=work.response.id)
        running.task.add_done_callback(lambda _: (running.begun.set(), ended()))

    async def cancel(self, response_id: str) -> bool:
        """Stop it and wait until it has stopped; False where nothing runs. Whoever follows it is told the end."""
        running = self._running.get(response_id)
        if running is None or running.task is None:
            return False
        await running.begun.wait()  # what has no beginning has no end that could be told
        running.stop()
        await asyncio.wait([running.task])
        return True

    async def follow(self, owner: Owner, response_id: str, after: int) -> AsyncGenerator[bytes]:
        """The frames behind `after`: those that are kept, then those that come, until the last."""
        while True:
            running = self._running.get(response_id)
            over = running is None or running.done
            kept = await self.store.read_events(owner, response_id, after)
            for number, frame in kept:
                yield frame
                after = number
            if over or running is None or self._closing:
                return
            async with running.news:
                while running.sent <= after and not running.done and not self._closing:
                    await running.news.wait()

    async def stop_following(self) -> None:
        """The server is about to stop: whoever follows is let go, and may come back."""
        self._closing = True
        for running in list(self._running.values()):
            async with running.news:
                running.news.notify_all()

    async def aclose(self) -> None:
        """Stop everything. What is unfinished is found on the next start."""
        await self.stop_following()
        tasks: list[asyncio.Task[None]] = []
        for running in self._running.values():
            running.work.abandoned = True
            if running.task is not None:
                running.stop()
                tasks.append(running.task)
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, work: Work, running: _Running) -> None:
        """Do the work, and keep its events as fast as the store takes them: never more than a batch waits."""
        frames: Frames = asyncio.Queue(_BATCH)
        keeper = asyncio.create_task(self._keep(work, running, frames))
        events = work.events()
        unkept: list[AnyEvent] = []
        try:
            async for event in events:
                unkept = [event]
                await frames.put(_frame(event))
                unkept = []
                running.begun.set()
        except StoreFault:
            _logger.warning("background response %s is not written yet", work.response.id)
        except Exception:  # the outermost loop of a task that nobody awaits
            _logger.exception("background response %s failed", work.response.id)
        finally:
            running.ending = True
            await events.aclose()
            for event in [] if work.abandoned else [*unkept, *work.parting]:
                await frames.put(_frame(event))
            await frames.put(None)
            await keeper
            running.done = True
            self._running.pop(work.response.id, None)
            await _tell(running)

    async def _keep(self, work: Work, running: _Running, frames: Frames) -> None:
        while (first := await frames.get()) is not None:
            batch, over = [first], False
            while not frames.empty() and not over:
                more = frames.get_nowait()
                over = more is None
                if more is not None:
                    batch.append(more)
            try:
                await self.store.append_events(work.owner, work.response.id, batch)
            except StoreFault:  # a gap in what followers see; the response itself is written later
                _logger.warning("events of background response %s are lost", work.response.id)
            running.sent = batch[-1][0]
            await _tell(running)
            if over:
                return


def _frame(event: AnyEvent) -> tuple[int, bytes]:
    return event.sequence_number, to_sse(event)


async def _tell(running: _Running) -> None:
    async with running.news:
        running.news.notify_all()
