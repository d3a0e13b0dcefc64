"""Takeover: works off what ended processes left unfinished, and the cancellations that other replicas received."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from antwort.engine.background import Background
from antwort.engine.driver import ResponseRun
from antwort.engine.engine import MAX_CLAIMED, Engine
from antwort.engine.stores import StoreFault
from antwort.telemetry import log

MAX_RUNNING = 256
"""A replica that runs so many background responses takes over few others at a time."""
MIN_CLAIMED = 8
"""Responses that even such a replica takes over each second: all others may be as busy, or gone."""
_INTERVAL = 1.0


@dataclass
class Takeover:
    """Call `recover` at start; `run` in a task where the store has several replicas."""

    engine: Engine
    background: Background
    launch: Callable[[ResponseRun], Awaitable[None]]
    """Runs a resumed response in the background."""
    _missing: set[str] = field(default_factory=set[str])
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def notify(self, replica_id: str) -> None:
        """A replica has ended: look at once."""
        del replica_id
        self._wake.set()

    async def recover(self) -> None:
        """Take over everything that is unfinished; a replica with `MAX_RUNNING` responses a part of it."""
        is_alone = self.engine.store.replicas is None
        is_first = True
        while (free := MAX_RUNNING - self.background.running) > 0 or is_alone or is_first:
            is_first = False
            async with self.background.recovering:
                limit = MAX_CLAIMED if is_alone else min(max(free, MIN_CLAIMED), MAX_CLAIMED)
                resumed = await self.engine.recover(limit, self.background.known_ids)
                for run in resumed:
                    await self.launch(run)
            if not resumed:
                return

    async def _check_running(self) -> None:
        """Stop responses that another replica was asked to cancel, or that were taken over or deleted.

        One that only ends just now is missing in the store once, one that was taken over every time.
        """
        running = self.background.running_ids
        unfinished = await self.engine.store.own_unfinished()
        for identifier in running:
            if unfinished.get(identifier):
                self.background.stop(identifier)
        missing = running - unfinished.keys()
        for identifier in missing & self._missing:
            self.background.abandon(identifier)
        self._missing = missing

    async def run(self) -> None:
        """Take over and cancel, for ever. To prepare a response may last long, and no cancellation waits for that."""
        await asyncio.gather(_repeat(self.recover, self._wake), _repeat(self._check_running, asyncio.Event()))


async def _repeat(work: Callable[[], Awaitable[None]], wake: asyncio.Event) -> None:
    """Do it every second, and when the event is set."""
    while True:
        try:
            async with asyncio.timeout(_INTERVAL):
                await wake.wait()
        except TimeoutError:
            pass
        wake.clear()
        try:
            await work()
        except StoreFault:
            log.warning("takeover_postponed")  # the store is away
        except Exception:  # noqa: BLE001 - the outermost loop: if it ended, nothing would be taken over
            log.exception("takeover_failed")
