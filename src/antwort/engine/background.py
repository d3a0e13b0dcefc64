"""Responses that go on without their caller. Their events are kept, so that anybody may follow, from any point."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from antwort.api.events import FINAL_EVENTS
from antwort.engine.engine import Work
from antwort.engine.ports import Owner, Store, StoreFault

_logger = logging.getLogger(__name__)


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
            if kept and not self._closing:
                continue  # there may be more, of what is read at a time
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
            running.work.server_stopping = True
            if running.task is not None:
                running.stop()
                tasks.append(running.task)
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, work: Work, running: _Running) -> None:
        """Do the work and keep its events, as fast as the store takes them."""

        async def kept(number: int) -> None:
            running.sent = number
            await _tell(running)

        work.journal.begin(kept)
        events = work.events()
        try:
            async for event in events:
                if not isinstance(event, FINAL_EVENTS):  # those are kept with the response that they are the end of
                    await work.journal.add(event)
                running.begun.set()
        except StoreFault:
            _logger.warning("background response %s is not written yet", work.response.id)
        except Exception:  # the outermost loop of a task that nobody awaits
            _logger.exception("background response %s failed", work.response.id)
        finally:
            running.ending = True
            await events.aclose()
            await work.journal.close()
            running.done = True
            self._running.pop(work.response.id, None)
            await _tell(running)


async def _tell(running: _Running) -> None:
    async with running.news:
        running.news.notify_all()
