"""Responses that go on without their caller. Their events are kept, so that anybody may follow, from any point."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from antwort.api.events import ENDINGS, kind_of, to_sse
from antwort.engine.engine import Work
from antwort.engine.ports import Store

_logger = logging.getLogger(__name__)

_BATCH = 64


@dataclass
class _Running:
    work: Work
    news: asyncio.Condition = field(default_factory=asyncio.Condition)
    task: asyncio.Task[None] | None = None
    sent: int = -1  # the last sequence number that is in the store
    done: bool = False


@dataclass
class Background:
    """The responses that are under way in this process."""

    store: Store
    _running: dict[str, _Running] = field(default_factory=dict[str, _Running])

    def launch(self, work: Work) -> None:
        """Let it go on by itself."""
        running = self._running[work.response.id] = _Running(work)
        running.task = asyncio.create_task(self._run(work, running), name=work.response.id)

    def is_running(self, response_id: str) -> bool:
        return response_id in self._running

    async def cancel(self, response_id: str) -> bool:
        """Stop it and wait until it has stopped; False where nothing runs."""
        running = self._running.get(response_id)
        if running is None or running.task is None:
            return False
        running.task.cancel()
        await asyncio.wait([running.task])
        return True

    async def follow(self, response_id: str, after: int) -> AsyncGenerator[bytes]:
        """The frames behind `after`: those that are kept, then those that come, until the last."""
        while True:
            running = self._running.get(response_id)
            kept = await self.store.read_events(response_id, after)
            for number, frame in kept:
                yield frame
                after = number
            if running is None or running.done:
                if not kept:
                    return
                continue
            async with running.news:
                while running.sent <= after and not running.done:
                    await running.news.wait()

    async def aclose(self) -> None:
        """Stop everything. What is unfinished is found on the next start."""
        tasks: list[asyncio.Task[None]] = []
        for running in self._running.values():
            running.work.abandoned = True
            if running.task is not None:
                running.task.cancel()
                tasks.append(running.task)
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, work: Work, running: _Running) -> None:
        events = work.events()
        batch: list[tuple[int, bytes]] = []
        try:
            async for event in events:
                batch.append((event.sequence_number, to_sse(event)))
                if len(batch) >= _BATCH or isinstance(event, ENDINGS) or not kind_of(event).endswith(".delta"):
                    await self._keep(work, running, batch)
        except Exception:  # the outermost loop of a task that nobody awaits
            _logger.exception("background response %s failed", work.response.id)
        finally:
            await events.aclose()
            running.done = True
            del self._running[work.response.id]
            async with running.news:
                running.news.notify_all()

    async def _keep(self, work: Work, running: _Running, batch: list[tuple[int, bytes]]) -> None:
        await self.store.append_events(work.response.id, batch)
        running.sent = batch[-1][0]
        batch.clear()
        async with running.news:
            running.news.notify_all()
