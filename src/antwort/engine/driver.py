"""Drives a turn: asks real models, runs real tools, and hands out events one by one.

Pull-based: nothing goes on until the event before was taken. So a slow reader slows the
model down instead of filling memory, and one that goes away ends the work.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from antwort.api.events import AnyEvent
from antwort.api.responses import Response
from antwort.engine.ports import (
    Finished,
    Model,
    ModelFault,
    Piece,
    Progress,
    ToolDone,
    Workbench,
)
from antwort.engine.turn import Ask, Cancelled, Command, Emit, Job, NextPiece, NextStep, Open, Run, turn
from antwort.telemetry import ToolCallSpan

_logger = logging.getLogger(__name__)


@dataclass
class Drive:
    """One turn on its way. Iterate `events()`; afterwards `response` is how it ended.

    `parting` holds the last events of a turn that was cancelled: those that its iterator,
    which is gone, does not get any more.
    """

    job: Job
    model: Model
    benches: Mapping[int, Workbench]

    def __post_init__(self) -> None:
        self.response: Response = self.job.response
        self.parting: list[AnyEvent] = []
        self._pieces: AsyncIterator[Piece] | None = None
        self._steps: AsyncIterator[Progress | ToolDone] | None = None
        self._tool: ToolCallSpan | None = None
        self._sent = 0

    @property
    def fault(self) -> ModelFault | None:
        """Why it failed, if it did."""
        return self.job.fault

    async def events(self) -> AsyncGenerator[AnyEvent]:
        """The events, numbered. Closing the generator cancels the turn."""
        loop = turn(self.job)
        answer: object = None
        kept = ExitStack()
        try:
            for bench in self.benches.values():
                kept.enter_context(bench.at_work())
            while True:
                try:
                    command = loop.throw(answer) if isinstance(answer, Exception) else loop.send(answer)
                except StopIteration as stop:
                    self.response = stop.value
                    return
                if isinstance(command, Emit):
                    answer = None
                    yield self._numbered(command.event)
                else:
                    answer = await self._answer(command)
        except BaseException:
            self._cancel(loop)
            raise
        finally:
            await _close(self._pieces)
            await _close(self._steps)
            self._end_tool("cancelled")
            kept.close()

    def _numbered(self, event: AnyEvent) -> AnyEvent:
        event.sequence_number = self._sent
        self._sent += 1
        return event

    def _cancel(self, loop: Generator[Command, Any, Response]) -> None:
        """Let the turn settle what it has, and hear its last words."""
        try:
            command = loop.throw(Cancelled())
            while isinstance(command, Emit):
                self.parting.append(self._numbered(command.event))
                command = loop.send(None)
        except StopIteration as stop:
            self.response = stop.value
        except Cancelled:  # the turn itself has failed, and says nothing any more
            pass

    async def _answer(self, command: Ask | NextPiece | Open | Run | NextStep) -> object:
        """What came of it; also that it broke, for the turn to end with."""
        try:
            return await self._serve(command)
        except Exception as error:  # noqa: BLE001 - a model's or a tool's own code; the turn logs it and ends
            return error

    async def _serve(self, command: Ask | NextPiece | Open | Run | NextStep) -> object:
        match command:
            case Ask(request):
                self._pieces = self.model.generate(request)
                return None
            case NextPiece():
                return await self._next_piece()
            case Open():
                return await self.benches[command.at].open(command.name, command.call_id)
            case Run(call):
                self._steps = call.run()
                self._tool = ToolCallSpan(command.name, command.call_id)
                return None
            case NextStep():
                return await self._next_step()

    async def _next_piece(self) -> Piece | ModelFault:
        assert self._pieces is not None  # noqa: S101 - a turn asks before it listens
        try:
            piece = await anext(self._pieces)
        except ModelFault as fault:
            return fault
        except StopAsyncIteration:
            return ModelFault("The model stopped in the middle of its answer.")
        except Exception as error:  # a model's own code; the log knows what happened, the caller that it did
            _logger.exception("a model failed")
            fault = ModelFault("The model failed.")
            fault.__cause__ = error
            return fault
        if isinstance(piece, Finished):
            await _close(self._pieces)
            self._pieces = None
        return piece

    async def _next_step(self) -> Progress | ToolDone:
        assert self._steps is not None  # noqa: S101 - a turn runs a call before it asks how that goes
        step = await anext(self._steps)
        if isinstance(step, ToolDone):
            await _close(self._steps)
            self._steps = None
            self._end_tool(step.item.get("status", "completed"))
        return step

    def _end_tool(self, status: str) -> None:
        if self._tool is not None:
            self._tool.end(status)
            self._tool = None


async def _close(stream: object) -> None:
    """Generators hold connections; let them go now and not when they are collected."""
    if isinstance(stream, AsyncGenerator):
        try:
            await stream.aclose()
        except Exception:  # a model's or a tool's own code; it is done with, so nobody is to suffer
            _logger.exception("a model or a tool did not close")
