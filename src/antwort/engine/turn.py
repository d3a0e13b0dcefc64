"""Agent loop of a response, without I/O: ask the model, run its hosted tool calls, repeat until no call is left.

`TurnLoop.run` is a generator. It yields commands, and the driver sends back their results:

    Count(request)        ->  int           the input tokens of a request
    Ask(request)          ->  Piece         send a request to the model; the first piece of its reply
    NextPiece()           ->  Piece         the next piece; `Finished` is the last
    Open(name, …)         ->  GuardedCall   the item of a hosted call begins
    Run(call, …)          ->  ToolDone      the reply is complete: run the call, emit its progress events
    Emit(events)          ->  None          send events to the client

It returns the response as it ended. The driver throws `ModelFault` in where the model
failed, and `Cancelled` where the response is cancelled. In every case the last event is
`response.completed`, `response.incomplete` or `response.failed`. See `driver`.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from antwort.api import events as wire
from antwort.api import items
from antwort.api.attached_parts import AttachedPart, PartLocation, attached_parts
from antwort.api.errors import ErrorDetail
from antwort.api.events import AnyEvent
from antwort.api.ids import MAX_ID_LENGTH, new_id
from antwort.api.items import InputImage, Item
from antwort.api.requests import CreateResponse
from antwort.api.responses import IncompleteDetails, Response, ResponseError, ResponseStatus, Usage
from antwort.api.token_estimate import estimate_item
from antwort.engine.classify import ClientSide, Offer, ServerSide
from antwort.engine.compaction.compactor import Compacted, Compactor, SummaryReply
from antwort.engine.hosted_tools import GuardedCall
from antwort.engine.output_builder import OpenCall, OutputBuilder
from antwort.engine.ports import (
    CallPiece,
    CompactionPiece,
    Finished,
    ModelFault,
    ModelRequest,
    Piece,
    RefusalPiece,
    TextPiece,
    ToolDone,
)
from antwort.engine.reply.calls import WrittenCall
from antwort.engine.reply.demand import CallDemand
from antwort.engine.reply.queue import ReplyQueue
from antwort.engine.truncate import CONTEXT_LENGTH_EXCEEDED, truncate_history

_logger = logging.getLogger(__name__)

_LOGPROBS = "message.output_text.logprobs"
_UNFINISHED_COMPACTION = {"type": "compaction", "encrypted_content": ""}
"""A compaction item until its summary is written."""
_REPLAYED_TYPES = ("message", "reasoning", "compaction")
_MIN_OUTPUT_TOKENS = 16  # the smallest `max_output_tokens` that this server and a Responses upstream accept


@dataclass(frozen=True)
class Count:
    """Count the input tokens of a request."""

    request: ModelRequest


@dataclass(frozen=True)
class Ask:
    """Send a request to the model; or to the model that writes summaries."""

    request: ModelRequest
    for_summary: bool = False


@dataclass(frozen=True)
class NextPiece:
    """Read the next piece of the reply."""


@dataclass(frozen=True)
class Open:
    """Begin a call of a hosted function. `tool_index` is the index of its tool in `tools`."""

    name: str
    call_id: str
    tool_index: int
    output_index: int


@dataclass(frozen=True)
class Run:
    """Run a call. `name` and `call_id` are those that the model wrote."""

    call: GuardedCall
    name: str
    call_id: str


@dataclass(frozen=True)
class Emit:
    """Send events to the client."""

    events: Sequence[AnyEvent]


Command: TypeAlias = Count | Ask | NextPiece | Open | Run | Emit
Commands: TypeAlias = Generator[Command, Any, None]


@dataclass(frozen=True)
class CompactionPlan:
    """What a response does about compaction. By default nothing."""

    compactor: Compactor | None = None
    is_triggered: bool = False
    """The request asks for a compaction instead of an answer."""
    transcript: Sequence[Item] = ()
    """The history as it is stored, item by item as in `history`, which has the attachments that models read."""
    history: Sequence[Item] = ()
    upstream_threshold: int | None = None
    """The upstream compacts by itself: its threshold…"""
    is_upstream_triggered: bool = False
    """…and whether it is triggered now."""

    def with_attachments(self, window: Sequence[Item]) -> list[Item]:
        """The items of a window as models read them."""
        pairs = list(zip(self.transcript, self.history, strict=True))
        resolved = {id(item): read for item, read in pairs}
        parts = {
            source: read.raw[location.field][location.part_index]
            for item, read in pairs
            for location, source in _sources(item)
        }
        return [resolved.get(id(item)) or _with_parts(item, parts) for item in window]


def _sources(item: Item) -> list[tuple[PartLocation, str]]:
    """The attached parts of an item: their locations, and what identifies their content."""
    found = [(location, _source(part)) for location, part in attached_parts(item, "")]
    return [(location, source) for location, source in found if source is not None]


def _source(part: AttachedPart) -> str | None:
    inline = part.image_url if isinstance(part, InputImage) else part.file_data
    return part.file_id or inline


def _with_parts(item: Item, parts: Mapping[str, dict[str, Any]]) -> Item:
    """A changed item of the window, with the parts that the item in the history has."""
    raw = item.raw
    for location, source in _sources(item):
        content = list(raw[location.field])
        content[location.part_index] = parts.get(source, content[location.part_index])
        raw = {**raw, location.field: content}
    return item if raw is item.raw else items.read(raw)


class Cancelled(Exception):
    """The response was cancelled, or its client disconnected."""


class TurnLoop:
    """One response: its state, and the agent loop that advances it."""

    def __init__(
        self,
        request: CreateResponse,
        response: Response,
        *,
        upstream_model: str,
        tenant: str = "",
        history: Sequence[Item],
        offer: Offer,
        now: Callable[[], int],
        max_turns: int = 32,
        output: OutputBuilder | None = None,
        compaction: CompactionPlan | None = None,
    ) -> None:
        self.request = request
        self.response = response
        self.fault: ModelFault | None = None
        """Why the response failed, if it did."""
        self._upstream_model = upstream_model
        self._tenant = tenant
        self._history = list(history)
        self._offer = offer
        self._now = now
        self._max_turns = max_turns
        self._output = output or OutputBuilder()
        self._compaction = compaction or CompactionPlan()
        if self._compaction.is_upstream_triggered:  # the reply is a compaction, and no call
            self._offer = offer.with_auto_choice()
        self._transcript = list(self._compaction.transcript)
        self._transcript_end = 0
        """The output items before this index are in the transcript, or were compacted."""
        self.compacted: Compacted | None = None
        """The last compaction, if there was one."""
        self._summary_tokens = 0
        self._usage: Usage | None = None
        self._hosted_calls = 0
        self._demand = CallDemand(response.model)
        self._open_call: WrittenCall | None = None
        """The call whose item has begun and not ended."""

    @property
    def is_compacted_upstream(self) -> bool:
        """Whether the upstream compacts this history, on request."""
        return self._compaction.is_upstream_triggered

    def run(self) -> Generator[Command, Any, Response]:
        """Advance the response to its end."""
        try:
            yield Emit(self._begin())
            if self._compaction.is_triggered:
                assert self._compaction.compactor is not None  # noqa: S101 - checked when the response was prepared
                yield from self._compact(self._compaction.compactor)
                yield Emit([self._completed()])
                return self.response
            for _ in range(self._max_turns):
                yield from self._compact_above_threshold()
                reply = ReplyQueue()
                finished = yield from self._ask(reply)
                if reply.is_cut:
                    reason = "max_output_tokens" if finished.reason == "length" else "content_filter"
                    yield Emit([self._incomplete(reason)])
                    return self.response
                if reply.has_client_calls or not (reply.calls or reply.is_asked_again):
                    yield from self._compact_above_threshold(finished.usage)
                    yield Emit([self._completed()])
                    return self.response
                if (left := self._tokens_left()) is not None and left < _MIN_OUTPUT_TOKENS:
                    yield Emit([self._incomplete("max_output_tokens")])
                    return self.response
                self._narrow_offer(reply)
            yield Emit([self._incomplete("max_messages")])
        except Exception as error:  # noqa: BLE001 - the response needs an end whatever failed
            yield Emit(self._abort(error))
        return self.response

    # ── start and end of the response ────────────────────────────────────────────────────────────────────────────────

    def _begin(self) -> list[AnyEvent]:
        created = wire.ResponseCreated(response=copy.copy(self.response))  # events must not change afterwards
        queued = [wire.ResponseQueued(response=copy.copy(self.response))] if self.response.background else []
        self.response.status = "in_progress"
        return [created, *queued, wire.ResponseInProgress(response=copy.copy(self.response))]

    def _completed(self) -> AnyEvent:
        self._finalize("completed")
        self.response.completed_at = self._now()
        return wire.ResponseCompleted(response=self.response)

    def _incomplete(self, reason: str) -> AnyEvent:
        self._finalize("incomplete")
        self.response.incomplete_details = IncompleteDetails(reason)
        return wire.ResponseIncomplete(response=self.response)

    def _abort(self, error: Exception) -> list[AnyEvent]:
        """The last events of a response that was cancelled, whose model failed, or that met a defect."""
        match error:
            case Cancelled():
                # The wire has no event for a cancelled response; clients take `response.incomplete` for an end.
                events = self._close_open_items("The response was cancelled.")
                self._finalize("cancelled")
                return [*events, wire.ResponseIncomplete(response=self.response)]
            case ModelFault():
                return [*self._close_open_items("The model failed before the call was whole."), *self._failed(error)]
            case _:  # the state may be inconsistent, so open items are not closed
                _logger.error("response %s failed", self.response.id, exc_info=error)
                fault = ModelFault("The server failed while it worked on this response.", status=500)
                fault.__cause__ = error
                return self._failed(fault)

    def _failed(self, fault: ModelFault) -> list[AnyEvent]:
        self.fault = fault
        self._finalize("failed")
        self.response.error = ResponseError(fault.code, fault.message)
        return [
            wire.ErrorEvent(error=ErrorDetail(type=fault.kind, code=fault.code, message=fault.message)),
            wire.ResponseFailed(response=self.response),
        ]

    def _close_open_items(self, reason: str) -> list[AnyEvent]:
        """End the open items as incomplete, with what the model has written of them."""
        events = self._output.close("incomplete")
        return events if self._open_call is None else [*events, *self._interrupt(self._open_call, reason)]

    def _finalize(self, status: ResponseStatus) -> None:
        """Set the status, the output and the usage of the response."""
        self.response.status = status
        self.response.output = [
            {**item, "status": "incomplete"} if item.get("status") == "in_progress" else item
            for item in self._output.output
            if not _is_unfinished_compaction(item)
        ]
        self.response.usage = self._usage

    # ── the model ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _ask(self, reply: ReplyQueue) -> Generator[Command, Any, Finished]:
        """Send the history to the model, emit its reply, run its hosted calls, and append all of it to the history."""
        piece = yield from self._first_piece()
        first_index = self._output.next_index  # behind the item of a compaction
        while not isinstance(piece, Finished):
            yield from self._read_piece(piece, reply)
            piece = cast("Piece", (yield NextPiece()))
        reply.finished = piece
        self._usage = (self._usage or Usage()) + piece.usage
        is_missed = self._demand.is_missed(self._offer, reply)
        dropped = reply.drop_text() if is_missed else ""
        yield from self._send_waiting(reply)
        yield Emit(self._output.close("incomplete" if reply.is_cut else "completed"))
        written = self._output.output[first_index:]
        self._history += [items.read(item) for item in written if item["type"] in _REPLAYED_TYPES]
        self._history += [items.read({"role": "assistant", "content": dropped})] if dropped else []
        self._record_calls(reply.calls.values())
        self._history += self._demand.repeat(self._offer, reply) if is_missed else []
        return piece

    def _first_piece(self) -> Generator[Command, Any, Piece]:
        """Send the request; with a compacted or truncated history where it is too long and the request allows it."""
        while True:
            try:
                return cast("Piece", (yield Ask(self.model_request())))
            except ModelFault as fault:
                if fault.code == CONTEXT_LENGTH_EXCEEDED and (compactor := self._shrinking_compactor()) is not None:
                    yield from self._compact(compactor)
                    continue
                shorter = truncate_history(self._history) if self.response.truncation == "auto" else None
                if fault.code != CONTEXT_LENGTH_EXCEEDED or shorter is None:
                    raise
                self._history = shorter

    def model_request(self) -> ModelRequest:
        """The next request to the model."""
        request = self.request
        return ModelRequest(
            model=self._upstream_model,
            items=[*self._history],
            tenant=self._tenant,
            instructions=request.instructions,
            tools=self._offer.specs,
            choice=self._offer.choice,
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
            compact_threshold=self._compaction.upstream_threshold,
            compaction_trigger=self._compaction.is_upstream_triggered,
        )

    def _tokens_left(self) -> int | None:
        limit = self.request.max_output_tokens
        used = self._usage.output_tokens - self._summary_tokens if self._usage else 0
        return None if limit is None else limit - used

    # ── compaction ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _compact_above_threshold(self, usage: Usage | None = None) -> Commands:
        """Compact the history if it is above the threshold. `usage` is that of the request whose reply ended it."""
        compactor = self._compaction.compactor
        if compactor is None or compactor.threshold is None:
            return
        tokens = usage.input_tokens + usage.output_tokens if usage is not None else 0
        if not tokens:
            tokens = yield from self._count_tokens()
        if compactor.is_due(self._current_transcript(), tokens):
            yield from self._compact(compactor)

    def _count_tokens(self) -> Generator[Command, Any, int]:
        request = self.model_request()
        try:
            return cast("int", (yield Count(request)))
        except ModelFault:  # the request itself shows whether the model works
            return sum(map(estimate_item, request.items))

    def _shrinking_compactor(self) -> Compactor | None:
        """The compactor for a history that the model finds too long; None if it cannot become shorter."""
        compactor = self._compaction.compactor
        return None if compactor is None else compactor.shrink(self._current_transcript())

    def _compact(self, compactor: Compactor) -> Commands:
        """Replace the history by a compacted window, and add the compaction item to the output."""
        history = self._current_transcript()
        item = {"id": new_id("cmp_"), **_UNFINISHED_COMPACTION}
        index = self._output.next_index
        yield Emit([self._output.begin(item)])
        if self._compaction.is_triggered:
            yield Emit([wire.CompactionCompacting(item_id=item["id"], output_index=index)])
        done = yield from compactor.compact(item["id"], history, self.model_request(), self._read_summary)
        self._usage = (self._usage or Usage()) + done.usage
        self._summary_tokens += done.usage.output_tokens
        self.compacted, self.response.compaction = done, done.note
        self._history = self._compaction.with_attachments(done.window)
        self._transcript, self._transcript_end = done.window, index + 1
        yield Emit([self._output.end(index, {**item, "encrypted_content": done.encrypted_content})])

    def _read_summary(self, request: ModelRequest, reply: SummaryReply) -> Commands:
        piece = cast("Piece", (yield Ask(request, for_summary=True)))
        reply.add(piece)
        while not (isinstance(piece, Finished) or reply.is_too_long):
            piece = cast("Piece", (yield NextPiece()))
            reply.add(piece)

    def _current_transcript(self) -> list[Item]:
        """The visible items as they are stored: hosted calls as their own items, attachments by id."""
        written = self._output.output[self._transcript_end :]
        return [*self._transcript, *(items.read(item) for item in written)]

    # ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _read_piece(self, piece: Piece, reply: ReplyQueue) -> Commands:
        """Send a piece, or keep it until the items before it are done."""
        if not isinstance(piece, CallPiece):
            is_text = isinstance(piece, (TextPiece, RefusalPiece))
            if reply.waiting or (is_text and self._demand.is_open(self._offer, reply)):
                reply.keep(piece)
            else:
                yield Emit(self._write(piece))
        elif (call := reply.calls.get(piece.index)) is not None:
            yield Emit(call.feed(piece.arguments))
        else:
            call = self._new_call(piece, reply)
            call.feed(piece.arguments)
            reply.add_call(piece, call)
        if reply.waiting:
            yield from self._send_waiting(reply)

    def _write(self, piece: Piece) -> list[AnyEvent]:
        """The events of a piece that is not part of a call."""
        assert not isinstance(piece, (CallPiece, Finished))  # noqa: S101 - the callers have dealt with those
        return self._output.add(piece.item) if isinstance(piece, CompactionPiece) else self._output.write(piece)

    def _send_waiting(self, reply: ReplyQueue) -> Commands:
        """Send what is next in order, up to the first call that is not done."""
        while reply.waiting:
            first = reply.waiting[0]
            if isinstance(first, WrittenCall):
                if not (reply.is_cut and first.is_hosted and not first.is_begun):  # a call that will not run
                    yield from self._begin_call(first)
                    if not reply.may_end(first):
                        return
                    yield from self._end_call(first, is_cut=reply.is_cut)
                reply.waiting.popleft()
            elif self._demand.is_open(self._offer, reply):
                return
            else:
                reply.waiting.popleft()
                for piece in first:
                    yield Emit(self._write(piece))

    def _new_call(self, piece: CallPiece, reply: ReplyQueue) -> WrittenCall:
        """Decide who runs a call, or why it is refused."""
        call = WrittenCall(piece.name, _valid_call_id(piece.call_id), self._offer.owner.get(piece.name))
        match call.owner:
            case _ if reply.has_accepted_call and not self.response.parallel_tool_calls:
                call.refusal = "Only one tool call at a time is allowed. Make this one again, alone."
            case _ if refusal := self._demand.refusal(self._offer, call.name):
                call.refusal = refusal
            case _ if call.name in self._offer.forbidden:  # some models ignore `tool_choice`
                call.refusal = f"Tool '{call.name}' must not be called in this response. Answer without it."
            case None:
                call.refusal = f"There is no tool '{call.name}'."
            case ServerSide() if not self._may_run_more():
                call.refusal = "No more tool calls are allowed in this response. Answer with what you have."
            case owner:
                self._hosted_calls += isinstance(owner, ServerSide)
                reply.has_accepted_call = True
        return call

    def _begin_call(self, call: WrittenCall) -> Commands:
        """Begin the item of a call, once."""
        if call.is_begun:
            return
        call.is_begun = True
        yield Emit(self._output.close())
        if call.refusal or call.owner is None:
            return
        call.output_index = index = self._output.next_index
        if isinstance(call.owner, ClientSide):
            owner = call.owner
            opened = OpenCall(
                index,
                name=owner.name,
                call_id=call.call_id,
                is_custom=owner.is_custom,
                namespace=owner.namespace,
                is_search=owner.is_search,
            )
            self._open_call = call
            yield Emit([self._output.begin(opened.item()), *call.begin(opened)])
        else:
            command = Open(call.name, call.call_id, call.owner.tool_index, index)
            hosted = cast("GuardedCall", (yield command))
            self._open_call = call
            yield Emit([self._output.begin(hosted.item), *hosted.started_events(), *call.begin(hosted)])

    def _end_call(self, call: WrittenCall, *, is_cut: bool) -> Commands:
        """End the item of a call; a hosted call is run before, unless the reply was cut off."""
        call.is_ended = True
        if call.client_call is not None:
            events, item = call.close(is_cut=is_cut)
            yield Emit([*events, self._close_call(call, item)])
        elif call.hosted is not None and is_cut:
            yield Emit(self._interrupt(call, "The reply was cut off before the call was run."))
        elif call.hosted is not None:
            done = cast("ToolDone", (yield Run(call.hosted, call.name, call.call_id)))
            call.output = done.text
            yield Emit([self._close_call(call, done.item)])

    def _interrupt(self, call: WrittenCall, reason: str) -> list[AnyEvent]:
        """End the item of a call that was not run to its end."""
        if call.hosted is not None:
            return [self._close_call(call, {**call.hosted.failed(reason).item, "status": "incomplete"})]
        events, item = call.close(is_cut=True)
        return [*events, self._close_call(call, {**item, "status": "incomplete"})]

    def _close_call(self, call: WrittenCall, item: dict[str, Any]) -> AnyEvent:
        self._open_call = None
        return self._output.end(call.output_index, item)

    def _record_calls(self, calls: Iterable[WrittenCall]) -> None:
        """Append the calls that the client does not run to the history, and their outputs behind all of them."""
        made = [call for call in calls if not call.is_client_side]
        self._history += [call.as_function_call() for call in made]
        self._history += [call.as_output() for call in made]

    def _may_run_more(self) -> bool:
        limit = self.response.max_tool_calls
        return limit is None or self._hosted_calls < limit

    def _narrow_offer(self, reply: ReplyQueue) -> None:
        """For the next request: no forced choice after a hosted call, no hosted tools past `max_tool_calls`."""
        if reply.has_hosted_calls:
            self._offer = self._offer.with_auto_choice()
        if not self._may_run_more():
            self._offer = self._offer.client_only()


def _valid_call_id(call_id: str) -> str:
    """The id that the model gave a call, or a new one: a client must be able to send it back."""
    return call_id if 0 < len(call_id) <= MAX_ID_LENGTH else new_id("call_")


def _is_unfinished_compaction(item: dict[str, Any]) -> bool:
    return item["type"] == "compaction" and not item.get("encrypted_content")
