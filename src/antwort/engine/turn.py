"""The turn of a response, without I/O: ask the model, run what is ours, until there is nothing left to run.

`turn` is a generator. It yields what it needs done and is sent what came of it:

    Ask(request)        ->  None            begin to ask the model
    NextPiece()         ->  Piece           what it says next; `Finished` is the last
    Open(name, …)       ->  HostedCall      the model begins to write a call that is run here
    Run(call)           ->  None            its arguments are whole: begin to run it
    NextStep(call)      ->  Progress | ToolDone
    Emit(event)         ->  None            tell whoever listens

and returns the response as it ended. A `ModelFault` is thrown in where the model failed,
`Cancelled` where nobody wants the answer any more, and any other exception where what was
asked for broke; from then on it only emits. Whatever happens, the last event tells how the
response ended. Whoever drives it decides how the world is reached: see `driver`.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from antwort.api import events as wire
from antwort.api import items
from antwort.api.errors import ErrorDetail
from antwort.api.events import AnyEvent
from antwort.api.ids import new_id
from antwort.api.items import Item
from antwort.api.requests import CreateResponse
from antwort.api.responses import IncompleteDetails, Response, ResponseError, ResponseStatus, Usage
from antwort.engine.classify import Clients, Offer, Ours
from antwort.engine.output_builder import Annotate, OpenCall, OutputBuilder
from antwort.engine.partial_json import FreeTextReader
from antwort.engine.ports import (
    CallPiece,
    Finished,
    HostedCall,
    ModelFault,
    ModelRequest,
    Piece,
    Progress,
    ToolDone,
)
from antwort.engine.shorten import TOO_LONG, shortened

_logger = logging.getLogger(__name__)

_LOGPROBS = "message.output_text.logprobs"
_FEWEST_TOKENS = 16  # that can be asked for: we take no smaller limit, and neither does a Responses upstream


@dataclass(frozen=True)
class Ask:
    """Begin to ask the model."""

    request: ModelRequest


@dataclass(frozen=True)
class NextPiece:
    """Send back the next piece of the answer."""


@dataclass(frozen=True)
class Open:
    """Send back a `HostedCall` of this function."""

    name: str
    call_id: str
    at: int


@dataclass(frozen=True)
class Run:
    """Begin to run it. The name and the id are those that the model knows."""

    call: HostedCall
    name: str
    call_id: str


@dataclass(frozen=True)
class NextStep:
    """Send back what the call does next."""

    call: HostedCall


@dataclass(frozen=True)
class Emit:
    """Tell whoever listens."""

    event: AnyEvent


Command: TypeAlias = Ask | NextPiece | Open | Run | NextStep | Emit
Steps: TypeAlias = Generator[Command, Any, None]


class Cancelled(Exception):
    """Nobody wants the answer any more."""


@dataclass
class Job:
    """What a turn works on."""

    request: CreateResponse
    response: Response
    model: str
    history: list[Item]
    offer: Offer
    now: Callable[[], int]
    max_turns: int = 32
    annotate: Annotate = lambda _: ()
    fault: ModelFault | None = None
    """Why it failed, if it did."""


@dataclass
class _Written:
    """A call that the model is writing, and what it has written."""

    name: str
    call_id: str
    ours: HostedCall | None = None
    theirs: OpenCall | None = None
    index: int = -1
    arguments: list[str] = field(default_factory=list[str])
    unwrap: FreeTextReader | None = None  # custom tools: the text in what the model writes
    refusal: str = ""  # why nobody makes it: the model is told, and the client never hears of it

    @property
    def is_made(self) -> bool:
        return not self.refusal


def turn(job: Job) -> Generator[Command, Any, Response]:
    """Drive a response to its end, whichever that is."""
    state = _Turn(job)
    try:
        yield from _played(state)
    except Exception as error:  # a defect, ours or a tool's: such a response has an end too, and it is told
        _logger.exception("response %s broke off", job.response.id)
        yield from state.break_off(error)
    return state.response


def _played(state: _Turn) -> Steps:
    try:
        yield from state.begin()
        yield from state.work()
    except ModelFault as fault:
        yield from state.fail(fault)
    except Cancelled:
        yield from state.cancel()


def first_request(job: Job) -> ModelRequest:
    """What the model is asked first."""
    return _Turn(job).model_request()


class _Turn:
    """One turn under way."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.response = job.response
        self.writer = OutputBuilder(job.annotate)
        self.history = list(job.history)
        self.offer = job.offer
        self.usage = Usage()
        self.counted = False
        self.hosted: list[HostedCall] = []
        self.begun: dict[int, _Written] = {}
        """Calls whose items have begun and not ended, by their places."""

    # ── from beginning to end ────────────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> Steps:
        yield Emit(wire.ResponseCreated(response=_copy(self.response)))
        if self.response.background:
            yield Emit(wire.ResponseQueued(response=_copy(self.response)))
        self.response.status = "in_progress"
        yield Emit(wire.ResponseInProgress(response=_copy(self.response)))

    def work(self) -> Steps:
        for _ in range(self.job.max_turns):
            written: dict[int, _Written] = {}
            start = self.writer.next_index
            finished = yield from self._ask(written)
            self._remember_speech(start)
            calls = list(written.values())
            yield from self._close_theirs(calls, finished)
            if finished.reason in ("length", "content_filter"):
                reason = "max_output_tokens" if finished.reason == "length" else "content_filter"
                yield from self._end_incomplete(reason)
                return
            yield from self._run_ours(calls)
            if any(call.theirs is not None for call in calls) or not calls:
                yield from self._complete()
                return
            if (left := self._tokens_left()) is not None and left < _FEWEST_TOKENS:
                yield from self._end_incomplete("max_output_tokens")
                return
            if any(call.ours is not None for call in calls):
                self.offer = self.offer.relaxed()
            self._stop_offering_when_spent()
        yield from self._end_incomplete("max_messages")

    def _complete(self) -> Steps:
        self.settle("completed")
        self.response.completed_at = self.job.now()
        yield Emit(wire.ResponseCompleted(response=self.response))

    def _end_incomplete(self, reason: str) -> Steps:
        self.settle("incomplete")
        self.response.incomplete_details = IncompleteDetails(reason)
        yield Emit(wire.ResponseIncomplete(response=self.response))

    def fail(self, fault: ModelFault) -> Steps:
        yield from self._leave_off("The model failed before the call was whole.")
        yield from self._end_failed(fault)

    def break_off(self, error: Exception) -> Steps:
        """Something is broken, so nothing is closed any more; items stay as far as they are."""
        if self.response.ended:  # only the last word is missing
            yield Emit(wire.ResponseFailed(response=self.response))
            return
        fault = ModelFault("The server failed while it worked on this response.", status=500)
        fault.__cause__ = error
        yield from self._end_failed(fault)

    def _end_failed(self, fault: ModelFault) -> Steps:
        self.job.fault = fault
        self.settle("failed")
        self.response.error = ResponseError(fault.code, fault.message)
        yield Emit(wire.ErrorEvent(error=ErrorDetail(type=fault.kind, code=fault.code, message=fault.message)))
        yield Emit(wire.ResponseFailed(response=self.response))

    def cancel(self) -> Steps:
        """The wire has no event for this end: `response.incomplete` is one that every client takes for an end."""
        yield from self._leave_off("The response was cancelled.")
        self.settle("cancelled")
        yield Emit(wire.ResponseIncomplete(response=self.response))

    def _leave_off(self, reason: str) -> Steps:
        """Whatever has begun stays as far as it came; of a call, what the model has written."""
        yield from self._emit(self.writer.close("incomplete"))
        for call in list(self.begun.values()):
            yield from self._end_call(call, _left(call, reason))

    def settle(self, status: ResponseStatus) -> None:
        """Write into the response how it stands."""
        self.response.status = status
        self.response.output = [
            {**item, "status": "incomplete"} if item.get("status") == "in_progress" else item
            for item in self.writer.output
        ]
        self.response.usage = self.usage if self.counted else None

    # ── the model ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _ask(self, written: dict[int, _Written]) -> Generator[Command, Any, Finished]:
        piece = yield from self._first_piece()
        while True:
            if isinstance(piece, Finished):
                self.usage, self.counted = self.usage + piece.usage, True
                status = "incomplete" if piece.reason in ("length", "content_filter") else "completed"
                yield from self._emit(self.writer.close(status))
                return piece
            if isinstance(piece, CallPiece):
                yield from self._call_piece(piece, written)
            else:
                yield from self._emit(self.writer.write(piece))
            piece = cast("Piece", (yield NextPiece()))

    def _first_piece(self) -> Generator[Command, Any, Piece]:
        """Ask, with less and less of the history where it is too long and may be cut."""
        while True:
            yield Ask(self.model_request())
            try:
                return cast("Piece", (yield NextPiece()))
            except ModelFault as fault:
                shorter = shortened(self.history) if self.response.truncation == "auto" else None
                if fault.code != TOO_LONG or shorter is None:
                    raise
                self.history = shorter

    def model_request(self) -> ModelRequest:
        """What the model is asked next."""
        request = self.job.request
        return ModelRequest(
            model=self.job.model,
            items=[*self.history],
            instructions=request.instructions,
            tools=self.offer.specs,
            choice=self.offer.choice,
            parallel=self.response.parallel_tool_calls,
            format=self.response.text.format,
            max_output_tokens=self._tokens_left(),
            temperature=request.temperature,
            top_p=request.top_p,
            top_logprobs=(request.top_logprobs or 0) if _LOGPROBS in (request.include or ()) else None,
            presence_penalty=request.presence_penalty,
            frequency_penalty=request.frequency_penalty,
            reasoning=request.reasoning,
            verbosity=request.text.verbosity if request.text else None,
            user=request.user,
        )

    def _tokens_left(self) -> int | None:
        most = self.job.request.max_output_tokens
        return None if most is None else most - self.usage.output_tokens

    def _call_piece(self, piece: CallPiece, written: dict[int, _Written]) -> Steps:
        call = written.get(piece.index)
        if call is None:
            yield from self._emit(self.writer.close())
            alone = not any(one.is_made for one in written.values())
            call = written[piece.index] = _Written(piece.name, piece.call_id or new_id("call_"))
            yield from self._begin_call(call, alone=alone)
        call.arguments.append(piece.arguments)
        if call.theirs is not None:
            text = call.unwrap.feed(piece.arguments) if call.unwrap else piece.arguments
            yield from self._emit(call.theirs.write(text))
        elif call.ours is not None and piece.arguments:
            yield from self._progress(call, call.ours.write(piece.arguments))

    def _begin_call(self, call: _Written, *, alone: bool) -> Steps:
        call.index = self.writer.next_index
        match self.offer.whose.get(call.name):
            case _ if not (alone or self.response.parallel_tool_calls):
                call.refusal = "Only one tool call at a time is allowed. Make this one again, alone."
            case _ if call.name in self.offer.forbidden:  # some models call what they were told not to
                call.refusal = f"Tool '{call.name}' must not be called in this response. Answer without it."
            case Clients(custom):
                call.theirs = OpenCall(call.index, name=call.name, call_id=call.call_id, custom=custom)
                call.unwrap = FreeTextReader() if custom else None
                self.begun[call.index] = call
                yield Emit(self.writer.begin(call.theirs.item()))
            case Ours(at) if self._may_run_more():
                opened = cast("HostedCall", (yield Open(call.name, call.call_id, at)))
                call.ours = opened
                self.hosted.append(opened)
                self.begun[call.index] = call
                yield Emit(self.writer.begin(opened.item))
                yield from self._progress(call, opened.opening())
            case Ours():
                call.refusal = "No more tool calls are allowed in this response. Answer with what you have."
            case _:
                call.refusal = f"There is no tool '{call.name}'."

    # ── tools ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _may_run_more(self) -> bool:
        most = self.response.max_tool_calls
        return most is None or len(self.hosted) < most

    def _stop_offering_when_spent(self) -> None:
        if not self._may_run_more():
            self.offer = self.offer.without_ours()

    def _close_theirs(self, calls: Sequence[_Written], finished: Finished) -> Steps:
        cut = finished.reason in ("length", "content_filter")
        for call in calls:
            if call.theirs is not None:
                if call.unwrap is not None:
                    yield from self._emit(call.theirs.write(call.unwrap.rest(cut=cut)))
                yield Emit(call.theirs.close())
                yield from self._end_call(call, call.theirs.item("incomplete" if cut else "completed"))
            elif call.ours is not None and cut:
                yield from self._end_call(call, _left(call, "The call was cut off before it was whole."))

    def _end_call(self, call: _Written, item: dict[str, Any]) -> Steps:
        self.begun.pop(call.index, None)
        yield Emit(self.writer.end(call.index, item))

    def _run_ours(self, calls: Sequence[_Written]) -> Steps:
        """Run what is ours, in order, and let the history know of every call and its result."""
        answers: list[Item] = []
        for call in calls:
            if call.theirs is not None:
                continue
            text = call.refusal
            if call.ours is not None:
                done = yield from self._run(call.ours, call)
                text = done.text
            self.history.append(_made(call))
            answers.append(_answered(call, text))
        self.history += answers  # behind all calls: a model that called several at once reads them so

    def _run(self, ours: HostedCall, call: _Written) -> Generator[Command, Any, ToolDone]:
        yield Run(ours, call.name, call.call_id)
        while True:
            step = cast("Progress | ToolDone", (yield NextStep(ours)))
            if isinstance(step, ToolDone):
                yield from self._end_call(call, step.item)
                return step
            yield from self._progress(call, [step])

    def _remember_speech(self, start: int) -> None:
        spoken = (item for item in self.writer.output[start:] if item["type"] in ("message", "reasoning"))
        self.history += map(items.read, spoken)

    def _progress(self, call: _Written, steps: Sequence[Progress]) -> Steps:
        item_id = self.writer.output[call.index]["id"]
        for step in steps:
            yield Emit(wire.ToolProgress(type=step.type, item_id=item_id, output_index=call.index, fields=step.fields))

    def _emit(self, events: Iterable[AnyEvent]) -> Steps:
        for event in events:
            yield Emit(event)


def _left(call: _Written, reason: str) -> dict[str, Any]:
    """The item of a call that is not made to its end."""
    if call.theirs is not None:
        return call.theirs.item("incomplete")
    done = {} if call.ours is None else call.ours.failed(reason).item
    return {**done, "status": "incomplete"}


def _made(call: _Written) -> Item:
    """For the next request the call is a plain function call, as the model made it."""
    arguments = "".join(call.arguments) or "{}"
    return items.read({"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": arguments})


def _answered(call: _Written, text: str) -> Item:
    return items.read({"type": "function_call_output", "call_id": call.call_id, "output": text})


def _copy(response: Response) -> Response:
    """The response as it is now: events are kept, and must not change afterwards."""
    return copy.copy(response)
