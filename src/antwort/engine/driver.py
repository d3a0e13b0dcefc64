"""Driver of a turn: executes its commands against the model, the tools and the store, and yields its events.

Durable before effect: a hosted call of a background response is run only when the store has the step of the checkpoint
that says so. After a crash that call is not run a second time.

Pull-based: nothing runs until the event before was consumed. A slow client slows the model
down instead of filling memory, and closing the generator cancels the response. Before the
last event is yielded, the response is stored as it ended (durable before visible).
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from antwort.api.events import FINAL_EVENTS, AnyEvent, ResponseInProgress, ToolProgress
from antwort.api.items import Raw
from antwort.api.responses import Response
from antwort.engine.checkpoint.steps import Step, encode_step
from antwort.engine.commands import Ask, Cancelled, Command, Continue, Count, Emit, NextPiece, Open, Run
from antwort.engine.context import Context
from antwort.engine.event_buffer import EventBuffer, Frame
from antwort.engine.hosted.cancellation import LeakedCancellation, raise_leaked
from antwort.engine.hosted.guarded import HostedTools
from antwort.engine.hosted.running import RunningCalls
from antwort.engine.ports import CallNotRecorded, Finished, Model, ModelFault, ModelRequest, Piece
from antwort.engine.stores import Owner, ResponseNotStored, ResponseTakenOver, Store, StoredStep, StoreFault
from antwort.engine.turn import TurnLoop

_logger = logging.getLogger(__name__)

_MAX_RETRY_WAIT = 30.0
_ENDS = (".completed", ".failed")
"""The ends of the types of progress events that report the end of a call."""


@dataclass
class RetryingWriter:
    """Retries the write of an ended response that the store refused.

    Without it a response whose end met a full disk would stay `in_progress` until the next start.
    """

    first_wait: float = 1.0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def schedule(self, write: Callable[[], Awaitable[None]]) -> None:
        """Retry until the write succeeds."""
        task = asyncio.create_task(self._retry(write))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _retry(self, write: Callable[[], Awaitable[None]]) -> None:
        wait = self.first_wait
        while True:
            await asyncio.sleep(wait)
            try:
                return await write()
            except ResponseTakenOver as lost:
                return _logger.warning("%s", lost)
            except StoreFault:
                wait = min(_MAX_RETRY_WAIT, wait * 2)

    async def aclose(self) -> None:
        """Stop retrying. The next start finds what is unwritten as unfinished."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass
class ResponseRun:
    """One response and the work on it. Iterate `events` once; afterwards `response` is how it ended."""

    owner: Owner
    context: Context
    turn: TurnLoop
    model: Model
    tools: HostedTools
    store: Store
    retries: RetryingWriter
    summary_model: Model | None = None
    """The model that writes summaries for compactions, if it is another one."""
    server_stopping: bool = False
    """The server stops: the response is left unfinished, and another process fails or resumes it."""
    is_taken_over: bool = False
    """Another replica works on the response: this one writes nothing more."""

    def __post_init__(self) -> None:
        self.response: Response = self.turn.response
        self.event_buffer = EventBuffer(self.store, self.owner, self.response.id)
        """Stores the events of a background response, except the last ones, which are written with its end."""
        self._is_settled = False
        self._final_events: list[AnyEvent] = []
        self._final_frames: list[Frame] = []
        self._pending: deque[AnyEvent] = deque()
        self._sent = 0
        self._next_step = 0
        self._pieces: AsyncIterator[Piece] | None = None
        self._running = RunningCalls()

    def continue_at(self, sequence: int, step: int) -> None:
        """Continue a stored response: the numbers of its next event, and of the next step of its checkpoint."""
        self._sent, self._next_step = sequence, step

    @property
    def fault(self) -> ModelFault | None:
        """Why the response failed, if it did."""
        return self.turn.fault

    @property
    def stop_sequence(self) -> str | None:
        """The stop sequence that ended the text of the last reply, if one did and the model says so."""
        return self.turn.stop_sequence

    @property
    def is_stored(self) -> bool:
        return self.response.store

    @property
    def items(self) -> list[Raw]:
        """What the response adds to the history: its input and its output. Empty if it has no answer."""
        if self.response.status not in ("completed", "incomplete"):
            return []
        given = [item.raw for item in self.context.given if item.type != "compaction_trigger"]
        return [*given, *self.response.output]

    async def finish(self) -> Response:
        """Do all the work; the response that the last event carries."""
        async for _ in self.events():
            pass
        return self.response

    async def events(self) -> AsyncGenerator[AnyEvent]:
        """Do the work, one numbered event at a time. Closing the generator cancels it; the result is stored anyway."""
        commands = self.turn.run()
        result: object = None
        with self.tools.lease():
            try:
                while (command := _send(commands, result)) is not None:
                    result = None
                    if isinstance(command, Emit):
                        self._pending.extend(command.events)
                    elif not isinstance(command, (Run, Continue)):
                        result = await self._execute(command)
                    elif (result := await self._begin_run(command)) is None:
                        while isinstance(step := await self._running.next_step(command.call), ToolProgress):
                            # A reported end is stored together with the result, or not at all.
                            self.event_buffer.is_holding = step.type.endswith(_ENDS)
                            yield self._numbered(step)
                        result = step
                    while self._pending:
                        event = self._numbered(self._pending.popleft())
                        if isinstance(event, FINAL_EVENTS):
                            await self._settle_at(event)
                        if isinstance(command, Emit):
                            self._note_with(command)
                        yield event
                        await self._write_in_progress(event)
            except BaseException:
                self._cancel(commands)
                raise
            finally:
                await self._close()

    def _numbered(self, event: AnyEvent) -> AnyEvent:
        event.sequence_number = self._sent
        self._sent += 1
        return event

    def _cancel(self, commands: Generator[Command, Any, Response]) -> None:
        """Let the turn end, and keep its last events, which the consumer of `events` no longer receives."""
        if self._is_settled:
            return
        events = [*self._pending]
        if not any(isinstance(event, FINAL_EVENTS) for event in events):
            with suppress(StopIteration, Cancelled):
                command = commands.throw(Cancelled())
                while isinstance(command, Emit):
                    events += command.events
                    command = commands.send(None)
        self._final_events = [self._numbered(event) for event in events]

    async def _close(self) -> None:
        """Stop the model and the calls, and store the end; that also if it is cancelled again meanwhile."""
        try:
            await self._close_pieces()
            await self._running.aclose()
        finally:
            if not self._is_settled and not self.server_stopping and not self.is_taken_over:
                await _shielded(self._settle(*self._final_events))

    # ── commands ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _execute(self, command: Count | Ask | NextPiece | Open) -> object:
        if isinstance(command, Open):
            try:
                with raise_leaked():
                    return await self.tools.open(command.tool_index, command.call)
            except LeakedCancellation:
                _logger.exception("a call could not begin")
                return self.tools.not_opened(command.tool_index)
        if isinstance(command, Count):
            return await self._count_tokens(command)
        return await self._next_piece(command)

    async def _count_tokens(self, command: Count) -> int | ModelFault:
        try:
            return await self.model.count_tokens(command.request)
        except ModelFault as fault:
            return fault

    async def _next_piece(self, command: Ask | NextPiece) -> Piece | ModelFault:
        """The next piece of the model's reply; or its failure, for the turn to end with."""
        try:
            if isinstance(command, Ask):
                await self._close_pieces()
                model = self.summary_model if command.for_summary and self.summary_model else self.model
                self._pieces = model.generate(command.request)
            assert self._pieces is not None  # noqa: S101 - a turn asks before it reads
            piece = await anext(self._pieces)
        except ModelFault as fault:
            return fault
        except StopAsyncIteration:
            return ModelFault("The model stopped in the middle of its answer.")
        except Exception as error:  # code of a model; the log has the cause, the client only that it failed
            _logger.exception("a model failed")
            fault = ModelFault("The model failed.")
            fault.__cause__ = error
            return fault
        if isinstance(piece, Finished):
            await self._close_pieces()
        return piece

    async def _close_pieces(self) -> None:
        """Close the model's generator now: it holds a connection."""
        pieces, self._pieces = self._pieces, None
        if isinstance(pieces, AsyncGenerator):
            try:
                await pieces.aclose()
            except Exception:  # code of a model that is not needed any more
                _logger.exception("a model could not be closed")

    async def _begin_run(self, command: Run | Continue) -> CallNotRecorded | None:
        """Before calls are run: their step is stored. The fault if it is not."""
        if isinstance(command, Run):
            if (fault := await self._record(command.step)) is not None:
                return fault
            self._running.begin(command.named, command.beside)
        return None

    def model_request(self) -> ModelRequest:
        """The first request to the model."""
        return self.turn.model_request()

    def _note_with(self, command: Emit) -> None:
        """Before an event of this command is yielded: all of them are stored together with its step, or none."""
        if self._pending:
            self.event_buffer.is_holding |= command.step is not None
        else:
            self._note(command.step)

    # ── the store ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _note(self, step: Step | None) -> None:
        """Have a step of the checkpoint stored together with the event that is numbered last."""
        if step is not None:
            self.event_buffer.note(StoredStep(self._next_step, self._sent - 1, encode_step(step)))
            self._next_step += 1

    async def _record(self, step: Step | None) -> CallNotRecorded | None:
        """Durable before effect: wait until a step and all events before it are stored; the fault if they are not."""
        if step is None:
            return await self._check_owned()
        self._note(step)
        try:
            await self.event_buffer.flush()
        except StoreFault as fault:
            _logger.warning("a call of response %s is not run: %s", self.response.id, fault)
            return CallNotRecorded()
        return None

    async def _check_owned(self) -> None:
        """Before a call of a response without steps: `ResponseTakenOver` if another replica has ended the response.

        This process was paused then, and the client may have sent the request again. A fault of the store changes
        nothing: the response is not continued elsewhere.
        """
        if self.is_stored and self.store.replicas is not None:
            try:
                await self.store.append_events(self.owner, self.response.id, [])
            except ResponseTakenOver:
                self.is_taken_over = True
                raise
            except StoreFault:
                pass

    async def _settle_at(self, ending: AnyEvent) -> None:
        """Durable before visible: store the response that the last event carries, before that event is yielded."""
        assert isinstance(ending, FINAL_EVENTS)  # noqa: S101 - only those carry an ended response
        self.response, self._is_settled = copy.copy(ending.response), True
        await _shielded(self._settle(ending))

    async def _settle(self, *final_events: AnyEvent) -> None:
        """Store how the response ended. A write that the store refuses is retried later, and raises now."""
        if not self.response.ended:
            self.response.status = "cancelled"
        if self.response.background:
            self._final_frames = await self.event_buffer.close(*final_events)
        try:
            await self._write()
        except ResponseTakenOver:
            self.is_taken_over = True
            raise
        except StoreFault as fault:
            self.retries.schedule(self._write)
            raise ResponseNotStored(
                f"Response '{self.response.id}' has ended and cannot be stored right now; the write is being retried. "
                "Retrieve it by its id before you send the request again."
            ) from fault

    async def _write_in_progress(self, event: AnyEvent) -> None:
        """Store `in_progress`, so that polling sees the end of `queued`. Nothing depends on it, so a fault is ignored.

        After the event is yielded: a cancellation meanwhile must not lose it.
        """
        if isinstance(event, ResponseInProgress) and self.is_stored and event.response.background:
            try:
                await self.store.finish_response(self.owner, event.response)
            except ResponseTakenOver:
                self.is_taken_over = True
                raise
            except StoreFault:
                pass

    async def _write(self) -> None:
        appended = self.items
        if self.is_stored:
            await self.store.finish_response(self.owner, self.response, appended=appended, events=self._final_frames)
        elif self.response.conversation is not None and appended:
            await self.store.add_items(self.owner, self.response.conversation.id, appended)


def _send(commands: Generator[Command, Any, Response], result: object) -> Command | None:
    """Send the result of a command to the turn; its next command, None at its end."""
    try:
        return commands.throw(result) if isinstance(result, Exception) else commands.send(result)
    except StopIteration:
        return None


async def _shielded(work: Coroutine[Any, Any, None]) -> None:
    """Await work that must not be cancelled; a cancellation meanwhile is raised after it."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
