"""The hosted calls of a response that run now: one, driven by the reader of its events, or several at the same time.

The steps of a call that is not read yet are kept, up to a number of them: then the call waits, as it does for a slow
client. A call starts when it is among the next few to be read, so that the one that is read never waits for one behind
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from antwort.api.events import ToolProgress
from antwort.engine.hosted.cancellation import LeakedCancellation, raise_leaked
from antwort.engine.hosted.guarded import GuardedCall, NamedCall
from antwort.engine.ports import NextItem, Progress, ToolDone
from antwort.telemetry import ToolCallSpan

_MAX_AT_ONCE = 8
_MAX_KEPT_STEPS = 64


class _Run:
    """The execution of one call, under a span."""

    def __init__(self, named: NamedCall) -> None:
        self.call = named.call
        self._span = ToolCallSpan(named.name, named.call_id)

    async def next_step(self) -> Progress | NextItem | ToolDone:
        """The next step; before the last one the call has released what it holds."""
        try:
            with raise_leaked():
                step = await self.call.produce()
        except LeakedCancellation:
            step = self.call.broken_off()
        if isinstance(step, ToolDone):
            await self._end(step.item.get("status", "completed"))
        return step

    async def _end(self, status: str) -> None:
        with suppress(LeakedCancellation), raise_leaked():
            await self.call.aclose()
        self._span.end(status)

    async def cancel(self) -> None:
        await self._end("cancelled")


@dataclass(eq=False)
class _Lane:
    """A call that runs in a task, and its steps that are not read yet."""

    named: NamedCall
    steps: asyncio.Queue[Progress | NextItem | ToolDone] = field(
        default_factory=lambda: asyncio.Queue(maxsize=_MAX_KEPT_STEPS)
    )
    may_start: asyncio.Event = field(default_factory=asyncio.Event)


class RunningCalls:
    """The calls of one response. They are read one after another, in the order of the reply."""

    def __init__(self) -> None:
        self._single: _Run | None = None
        self._lanes: list[_Lane] = []
        """Those that are not read to their end, in order."""
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, named: NamedCall, beside: Sequence[NamedCall]) -> None:
        """Begin to read a call; those `beside` it run at the same time, and are read later."""
        if beside:
            self._start([named, *beside])
        elif not (self._lanes and self._lanes[0].named.call is named.call):
            self._single = _Run(named)  # also one between calls that run already

    async def next_step(self, call: GuardedCall) -> ToolProgress | NextItem | ToolDone:
        """The next step of the call that is read."""
        if self._single is None:
            step = await self._lanes[0].steps.get()
        else:
            step = await self._single.next_step()
        if isinstance(step, ToolDone):
            self._ended()
        return call.deliver(step)

    def _ended(self) -> None:
        if self._single is None:
            del self._lanes[0]
            self._allow_next()
        self._single = None

    def _start(self, calls: Sequence[NamedCall]) -> None:
        self._lanes = [_Lane(named) for named in calls]
        self._allow_next()
        self._tasks = [asyncio.create_task(_run(lane)) for lane in self._lanes]

    def _allow_next(self) -> None:
        for lane in self._lanes[:_MAX_AT_ONCE]:
            lane.may_start.set()

    async def aclose(self) -> None:
        """Stop the calls that have not ended."""
        tasks, single = self._tasks, self._single
        self._tasks, self._single, self._lanes = [], None, []
        for task in tasks:
            task.cancel()
        if single is not None:
            await single.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run(lane: _Lane) -> None:
    await lane.may_start.wait()
    run = _Run(lane.named)
    try:
        while not isinstance(step := await run.next_step(), ToolDone):
            await lane.steps.put(step)
    except asyncio.CancelledError:
        await run.cancel()
        raise
    await lane.steps.put(step)
