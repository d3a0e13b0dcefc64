"""Takeover: works off what ended processes left unfinished, and the cancellations that other replicas received."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from antwort.api.errors import ApiError
from antwort.api.responses import Response, ResponseError
from antwort.engine.background import Background
from antwort.engine.driver import ResponseRun
from antwort.engine.engine import Engine
from antwort.engine.replicas.endings import store_end
from antwort.engine.stores import ClaimedResponse, ContentFault, ResponseTakenOver, StoreFault
from antwort.telemetry import log

_logger = logging.getLogger(__name__)

MAX_CLAIMED = 32
"""How many unfinished responses are claimed at a time: they are read with all their items."""
MAX_RUNNING = 256
"""A replica that runs so many background responses takes over few others at a time."""
MIN_CLAIMED = 8
"""Responses that even such a replica takes over each second: all others may be as busy, or gone."""
_INTERVAL = 1.0


class _StoreAway(StoreFault):
    """The store cannot be used at all: a response is taken over later."""


@dataclass
class Takeover:
    """Call `recover` at start where this is the only process of the store; otherwise `run` in a task.

    Each claimed response has a task of its own, which ends it, or resumes and launches it: one whose preparation lasts
    long delays no other.
    """

    engine: Engine
    background: Background
    launch: Callable[[ResponseRun], Awaitable[None]]
    """Runs a resumed response in the background."""
    on_taken_over: Callable[[str], None] = field(default=lambda _: None)
    """Called with what became of each response of an ended process: `resumed`, or its last status."""
    content_timeout: float = 300.0
    """Seconds that a response waits for contents of files that cannot be read."""
    _claimed: dict[str, ClaimedResponse] = field(default_factory=dict[str, ClaimedResponse])
    """Claimed and neither launched nor ended. One without a task is tried again."""
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, asyncio.Task[None]])
    _deadlines: dict[str, float] = field(default_factory=dict[str, float])
    """Claimed responses that need contents of files which could not be read, and when these fail by the monotonic
    clock."""
    _fault: StoreFault | None = None
    """The last one of a task."""
    _missing: set[str] = field(default_factory=set[str])
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def notify(self, replica_id: str) -> None:
        """A replica has ended: look at once."""
        del replica_id
        self._wake.set()

    async def recover(self) -> None:
        """Take over everything that is unfinished. `StoreFault` while the store cannot be used."""
        try:
            while True:
                if not self._idle():
                    await self._claim(MAX_CLAIMED)
                if not (idle := self._idle()):
                    return
                self._start(idle)
                await asyncio.wait(self._tasks.values())
                if self._idle() and self._fault is not None:
                    raise self._fault
        finally:
            await self._stop_tasks()

    async def run(self) -> None:
        """Take over and cancel, for ever."""
        self._wake.set()
        try:
            await asyncio.gather(
                _repeat(self.take_over_more, self._wake), _repeat(self._check_running, asyncio.Event())
            )
        finally:
            await self._stop_tasks()

    async def take_over_more(self) -> None:
        """Start tasks for what can be claimed, and for what is to be tried again; does not wait for them.

        A replica with `MAX_RUNNING` responses claims a part of it. `StoreFault` while the store cannot be used, and
        while other replicas may take this one for dead: they would take over in turn what it claims.
        """
        self.engine.check_lease()
        if self._idle():
            await self.engine.store.check_writable()
        self._start(self._idle())
        self._retry_contents()
        is_first = True
        while (free := MAX_RUNNING - self.background.running - len(self._tasks)) > 0 or is_first:
            is_first = False
            await self._claim(min(max(free, MIN_CLAIMED), MAX_CLAIMED))
            if not (idle := self._idle()):
                return
            self._start(idle)

    async def _stop_tasks(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ── tasks of claimed responses ───────────────────────────────────────────────────────────────────────────────────

    async def _claim(self, limit: int) -> None:
        """Claim responses, except those that this process still works on: it and its successor were taken for dead."""
        known = self.background.known_ids | self._claimed.keys()
        for one in await self.engine.store.claim_responses(limit, [*known]):
            self._claimed[one.stored.response.id] = one

    def _idle(self) -> list[str]:
        """The claimed responses that no task works on, and that do not wait for contents."""
        return [one for one in self._claimed if one not in self._tasks and one not in self._deadlines]

    def _retry_contents(self) -> None:
        """Try one of those that wait for contents again, unless one is just being tried; and those that are late."""
        waiting = [one for one in self._deadlines if one not in self._tasks]
        late = [one for one in waiting if self._deadlines[one] < time.monotonic()]
        if len(waiting) == len(self._deadlines):
            late += [one for one in waiting if one not in late][:1]
        for identifier in late:  # behind the others from now on
            self._deadlines[identifier] = self._deadlines.pop(identifier)
        self._start(late)

    def _start(self, identifiers: list[str]) -> None:
        for identifier in identifiers:
            self._tasks[identifier] = asyncio.create_task(self._work_off(self._claimed[identifier]), name=identifier)

    async def _work_off(self, claimed: ClaimedResponse) -> None:
        """Take over one response. After a `StoreFault` it stays claimed."""
        identifier = claimed.stored.response.id
        try:
            if not await self._take_over(claimed):
                return
        except StoreFault as fault:
            _logger.warning("response %s is taken over later: %s", identifier, fault)
            self._fault = fault
            return
        except ResponseTakenOver:  # by another replica, because this one was taken for dead; or it was cancelled
            pass
        except Exception:  # noqa: BLE001 - the outermost loop of a task: one broken response must not prevent the others
            log.exception("takeover_failed", response=identifier)
        finally:
            del self._tasks[identifier]
        self._claimed.pop(identifier, None)
        self._deadlines.pop(identifier, None)

    async def _take_over(self, claimed: ClaimedResponse) -> bool:
        """Resume or end a response; False if it is to be tried again, because contents cannot be read."""
        response = claimed.stored.response
        if claimed.cancel_requested:
            await self._end(claimed, msgspec.structs.replace(response, status="cancelled"))
            return True
        if not response.background:
            await self._end(claimed, _interrupted(response, ""))
            return True
        try:
            await self._resume(claimed)
        except ApiError as error:
            _logger.warning("response %s cannot be resumed: %s", response.id, error)
            reason = f" {error}"
        except (ResponseTakenOver, _StoreAway):
            raise
        except Exception as error:  # a broken response is failed, for its client
            if isinstance(error, ContentFault) and await self._postpone(claimed):
                _logger.warning("response %s is taken over later: %s", response.id, error)
                return False
            _logger.exception("response %s cannot be resumed", response.id)
            reason = ""
        else:
            self.on_taken_over("resumed")
            if response.id in self._deadlines:  # contents can be read again
                self._start([one for one in self._deadlines if one not in self._tasks])
            return True
        await self._end(claimed, _interrupted(response, reason))
        return True

    async def _resume(self, claimed: ClaimedResponse) -> None:
        """Resume; after a fault of a database that works again or still works, a second time.

        `_StoreAway` if it does not work: the response must not fail because the store works again only now.
        """
        try:
            return await self._resume_once(claimed)
        except ContentFault:
            raise
        except StoreFault:
            await self._check_store()
        try:
            return await self._resume_once(claimed)
        except StoreFault:
            await self._check_store()
            raise

    async def _resume_once(self, claimed: ClaimedResponse) -> None:
        await self.engine.resume(claimed.owner, claimed.stored, self.background.launching, self.launch)

    async def _check_store(self) -> None:
        try:
            await self.engine.store.check_writable()
        except StoreFault as fault:
            raise _StoreAway(str(fault)) from fault

    async def _postpone(self, claimed: ClaimedResponse) -> bool:
        """Take a response over later; False if it has waited for too long, or nothing would try again.

        The attempt that has just ended is not counted.
        """
        identifier, now = claimed.stored.response.id, time.monotonic()
        if self.engine.store.replicas is None:
            return False
        if self._deadlines.setdefault(identifier, now + self.content_timeout) < now:
            return False
        with suppress(StoreFault):  # then it counts
            await self.engine.store.resume_response(claimed.owner, claimed.stored)
        return True

    async def _end(self, claimed: ClaimedResponse, ended: Response) -> None:
        async with self.background.launching:  # it may be cancelled at the same time
            await self._store_end(claimed, ended)

    async def _store_end(self, claimed: ClaimedResponse, ended: Response) -> None:
        await store_end(self.engine.store, claimed.owner, claimed.stored, ended)
        self.on_taken_over(ended.status)

    # ── cancellations ────────────────────────────────────────────────────────────────────────────────────────────────

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
        for identifier in [one for one in self._claimed if unfinished.get(one)]:
            await self._cancel(identifier)

    async def _cancel(self, identifier: str) -> None:
        """End a response that another replica was asked to cancel, and that is not launched yet."""
        async with self.background.launching:
            if (claimed := self._claimed.get(identifier)) is None or identifier in self.background.known_ids:
                return
            with suppress(ResponseTakenOver):  # its task was faster
                await self._store_end(claimed, msgspec.structs.replace(claimed.stored.response, status="cancelled"))


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


def _interrupted(response: Response, reason: str) -> Response:
    message = f"The server was stopped while it worked on this response.{reason}"
    return msgspec.structs.replace(response, status="failed", error=ResponseError("server_error", message))
