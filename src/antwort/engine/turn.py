"""Agent loop of a response, without I/O: ask the model, run its hosted tool calls, repeat until no call is left.

`TurnLoop.run` is a generator. It yields the commands of `commands`, and the driver sends back their results. It
returns the response as it ended. The driver throws `ModelFault` in where the model failed, and `Cancelled` where the
response is cancelled. In every case the last event is `response.completed`, `response.incomplete` or `response.failed`.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Generator, Sequence
from typing import Any, cast

import msgspec

from antwort.api import events as wire
from antwort.api import items
from antwort.api.errors import ErrorDetail
from antwort.api.events import AnyEvent
from antwort.api.ids import MAX_ID_LENGTH, new_id
from antwort.api.items import Item, Raw
from antwort.api.requests import CreateResponse
from antwort.api.responses import (
    IncompleteDetails,
    Response,
    ResponseError,
    ResponseStatus,
    ToolUsage,
    Usage,
    WebSearchUsage,
)
from antwort.api.token_estimate import estimate_item
from antwort.engine.checkpoint.log import StepLog, copied
from antwort.engine.checkpoint.replies import restore_reply, save_reply
from antwort.engine.checkpoint.state import Checkpoint
from antwort.engine.checkpoint.steps import (
    BegunCall,
    EndedCall,
    HistoryEntry,
    SavedCompaction,
    SavedReply,
    Step,
    Totals,
)
from antwort.engine.classify import ClientSide, Offer, ServerSide, is_run_by_client
from antwort.engine.commands import Ask, Cancelled, Command, Commands, Continue, Count, Emit, NextPiece, Open, Run
from antwort.engine.compaction.compactor import Compacted, Compactor, SummaryReply
from antwort.engine.compaction.plan import CompactionPlan
from antwort.engine.hosted.guarded import GuardedCall, Opening, RefusedCall
from antwort.engine.output_builder import OpenCall, OutputBuilder
from antwort.engine.ports import (
    CallNotRecorded,
    CallPiece,
    CompactionPiece,
    Finished,
    ModelFault,
    ModelRequest,
    NextItem,
    OpeningItem,
    Piece,
    Progress,
    RefusalPiece,
    SamplingOptions,
    TextPiece,
    ToolDone,
    WholeCall,
)
from antwort.engine.reply.calls import WrittenCall
from antwort.engine.reply.demand import CallDemand
from antwort.engine.reply.queue import ReplyQueue
from antwort.engine.reply.repairs import IN_PROGRESS, advice, check_not_withdrawn, narrowed, note_broken_calls
from antwort.engine.truncate import CONTEXT_LENGTH_EXCEEDED, truncate_history

_logger = logging.getLogger(__name__)

_LOGPROBS = "message.output_text.logprobs"
_UNFINISHED_COMPACTION = {"type": "compaction", "encrypted_content": ""}
"""A compaction item until its summary is written."""
_REPLAYED_TYPES = ("message", "reasoning", "compaction")
_MIN_OUTPUT_TOKENS = 16  # the smallest `max_output_tokens` that this server and a Responses upstream accept
_NO_MORE_CALLS = "No more tool calls are allowed in this response. Answer with what you have."
_INTERRUPTED = (
    "The server was stopped while this call ran. It may have run, completely or in part; its result is lost. It was "
    "not run again. Check what it has done before you repeat it."
)


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
        self.stop_sequence: str | None = None
        """The stop sequence that ended the text of the last reply, if one did and the model says so."""
        self._upstream_model = upstream_model
        self._tenant = tenant
        self._history = list(history)
        self._offer = offer
        self._now = now
        self._max_turns = max_turns
        self._output = output or OutputBuilder()
        self._compaction = compaction or CompactionPlan()
        self.sampling = SamplingOptions()
        """The options that the request does not have."""
        self.opening = Opening()
        """What the response begins with."""
        self.generates = True
        """Whether a model is asked; otherwise the response is complete at once."""
        self.show_tools: Callable[[list[Raw]], list[Raw]] = list
        """The declared tools, as the response shows them at its end."""
        if self._compaction.is_upstream_triggered:  # the reply is a compaction, and no call
            self._offer = offer.with_auto_choice()
        self._transcript = list(self._compaction.transcript)
        self._transcript_end = 0
        """The output items before this index are in the transcript, or were compacted."""
        self.compacted: Compacted | None = None
        """The last compaction, if there was one."""
        self._totals = Totals()
        self._demand = CallDemand(response.model)
        self._open_call: WrittenCall | None = None
        """The call whose item has begun and not ended."""
        self._beside: list[WrittenCall] = []
        """The calls that run beside it, whose items have not begun."""
        self._log = StepLog(is_kept=response.background)
        self._checkpoint: Checkpoint | None = None

    @property
    def is_compacted_upstream(self) -> bool:
        """Whether the upstream compacts this history, on request."""
        return self._compaction.is_upstream_triggered

    def run(self) -> Generator[Command, Any, Response]:
        """Advance the response to its end."""
        try:
            if self._checkpoint is None:
                begun = self._begin()
                yield Emit(begun, self._complete(Step(self._totals)))
                last = yield from self._advance(None)
            else:
                last = yield from self._continue(self._checkpoint)
            yield Emit([last])
        except Exception as error:  # noqa: BLE001 - the response needs an end whatever failed
            yield Emit(self._abort(error))
        return self.response

    def _continue(self, checkpoint: Checkpoint) -> Generator[Command, Any, AnyEvent]:
        """Advance a response that an earlier process has begun, from its checkpoint."""
        open_reply, begun, compaction = checkpoint.reply, checkpoint.begun, checkpoint.compaction
        reply = None if open_reply is None else restore_reply(open_reply, self._offer.owner)
        self._offer = narrowed(self._offer, self._totals)
        if begun is not None:
            event = self._output.end(len(checkpoint.items), begun.item)
            yield Emit([event], self._complete(Step(self._totals, ended=EndedCall(begun.key, begun.text))))
        if compaction is not None and compaction.is_last:
            return self._completed()
        return (yield from self._advance(reply))

    def _advance(self, reply: ReplyQueue | None) -> Generator[Command, Any, AnyEvent]:
        """Ask the model until it calls no hosted tool; the last event. `reply` was read before, but is not ended."""
        if not self.generates:
            self._totals.usage = Usage()
            return self._completed()
        if self._compaction.is_triggered:
            assert self._compaction.compactor is not None  # noqa: S101 - checked when the response was prepared
            yield from self._compact(self._compaction.compactor, is_last=True)
            return self._completed()
        if reply is None:
            yield from self._emit_opening(self.opening.items)
            reply = self._approved_calls(self.opening.calls)
        while reply is not None or self._totals.turns < self._max_turns:
            if reply is None:
                yield from self._compact_above_threshold()
                reply = yield from self._read_reply()
            is_last = bool(self._totals.only)
            finished = yield from self._end_reply(reply)
            if reply.is_cut:
                return self._incomplete("max_output_tokens" if finished.reason == "length" else "content_filter")
            is_last |= reply.awaits_client and not self._may_repair()
            if is_last or not (reply.calls or reply.is_asked_again):
                yield from self._compact_above_threshold(finished.usage)
                return self._completed()
            if (left := self._tokens_left()) is not None and left < _MIN_OUTPUT_TOKENS:
                return self._incomplete("max_output_tokens")
            self._totals.is_choice_met |= reply.has_hosted_calls and self._totals.turns > 0  # the model's, not approved
            self._totals.is_client_only |= not self._may_run_more()
            self._offer = narrowed(self._offer, self._totals)
            reply = None
        return self._incomplete("max_messages")

    # ── the checkpoint ───────────────────────────────────────────────────────────────────────────────────────────────

    def restore(self, checkpoint: Checkpoint) -> None:
        """Before `run`: take over the state of a response that an earlier process has begun."""
        self._checkpoint = checkpoint
        self._log.continue_from(checkpoint)
        self.response.status = "in_progress"
        self._totals = copied(checkpoint.totals)
        self._count_web_requests(0)
        self._demand = CallDemand(self.response.model, self._totals.missed_demands)
        self._output.output = [*checkpoint.output]
        if (done := checkpoint.compaction) is not None:
            window = self._compaction.restored(done.window)
            self.response.compaction = done.note
            self._history = self._compaction.with_attachments(window)
            self._transcript, self._transcript_end = window, done.end
        self._append_history(checkpoint.history)

    def _append_history(self, entries: Sequence[HistoryEntry]) -> None:
        output = self._output.output
        self._history += [items.read(output[entry] if isinstance(entry, int) else entry) for entry in entries]

    def _complete(self, step: Step, end: int | None = None) -> Step | None:
        """The next step of the checkpoint, if there are steps: the output items before `end` have ended."""
        self._totals.missed_demands = self._demand.attempts
        return self._log.complete(step, self._output.output, end)

    def _begun_step(
        self, reply: ReplyQueue, call: WrittenCall, hosted: GuardedCall, beside: Sequence[WrittenCall] = ()
    ) -> Step | None:
        """The step before hosted calls are run, with their ends if the server is stopped meanwhile."""
        if not self._log.is_kept:
            return None
        begun = _interrupted(reply.key_of(call), hosted)
        others = [_interrupted(reply.key_of(one), one.hosted, early=True) for one in beside if one.hosted is not None]
        step = Step(self._totals, begun=begun, beside=others, reply=self._unsaved(reply))
        return self._complete(step, call.output_index)

    def _unsaved(self, reply: ReplyQueue) -> SavedReply | None:
        """The reply for the checkpoint, once."""
        if reply.is_saved or not self._log.is_kept:
            return None
        reply.is_saved = True
        return save_reply(reply)

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
            case CallNotRecorded():
                return [*self._close_open_items(error.message), *self._failed(error)]
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
        events += [] if self._open_call is None else self._interrupt(self._open_call, reason)
        for hosted in [call.hosted for call in self._beside]:
            if hosted is not None and hosted.has_run:
                ended = {**hosted.failed(reason).item, "status": "incomplete"}
                events += self._whole_item(hosted.item, hosted.early, ended)
        return events

    def _finalize(self, status: ResponseStatus) -> None:
        """Set the status, the output and the usage of the response."""
        self.response.status = status
        self.response.tools = self.show_tools(self.response.tools)
        self.response.output = [
            {**item, "status": "incomplete"} if item.get("status") == "in_progress" else item
            for item in self._output.output
            if item["type"] != "compaction" or item.get("encrypted_content")
        ]
        self.response.usage = self._totals.usage

    def _approved_calls(self, approved: Sequence[WholeCall]) -> ReplyQueue | None:
        """The calls that run before the model is asked, as a reply of the model; None if there are none."""
        if not approved:
            return None
        reply = ReplyQueue(first_index=self._output.next_index, finished=Finished("calls"), has_accepted_call=True)
        for key, whole in enumerate(approved):
            call = WrittenCall(whole.name, whole.call_id, self._offer.owner.get(whole.name))
            call.refusal = "" if call.owner else f"There is no tool '{call.name}'."
            if call.is_hosted and not self._may_run_more():
                call.refusal = _NO_MORE_CALLS
            call.feed(whole.arguments)
            self._totals.hosted_calls += call.is_hosted
            reply.add_call(CallPiece(key), call)
        return reply

    def _emit_opening(self, opened: Sequence[OpeningItem]) -> Commands:
        for one in opened:
            yield Emit(self._whole_item(one.begun, one.events, one.done), self._complete(Step(self._totals)))

    def _whole_item(self, begun: Raw, progress: Sequence[Progress], done: Raw) -> list[AnyEvent]:
        """An item with its events, from its begin to its end."""
        index = self._output.next_index
        added = self._output.begin(begun)
        steps = [
            wire.ToolProgress(
                type=step.type,
                item_id=begun["id"] if step.has_item_id else None,
                output_index=index,
                fields=step.fields,
            )
            for step in progress
        ]
        return [added, *steps, self._output.end(index, done)]

    # ── the model ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _read_reply(self) -> Generator[Command, Any, ReplyQueue]:
        """Send the history to the model, and emit what it writes up to its first hosted call."""
        piece = yield from self._first_piece()
        reply = ReplyQueue(first_index=self._output.next_index)  # behind the item of a compaction
        while not isinstance(piece, Finished):
            yield from self._read_piece(piece, reply)
            piece = cast("Piece", (yield NextPiece()))
        reply.finished = piece
        self.stop_sequence = piece.stop_sequence
        self._totals.turns += 1
        self._totals.usage = (self._totals.usage or Usage()) + piece.usage
        return reply

    def _end_reply(self, reply: ReplyQueue) -> Generator[Command, Any, Finished]:
        """Run the hosted calls of a complete reply, emit the rest of it, and append all of it to the history."""
        assert reply.finished is not None  # noqa: S101 - it was read to its end
        is_missed = self._demand.is_missed(self._offer, reply)
        dropped = reply.drop_text() if is_missed else ""
        yield from self._send_waiting(reply)
        yield Emit(self._output.close("incomplete" if reply.is_cut else "completed"))
        written = range(reply.first_index, self._output.next_index)
        entries: list[HistoryEntry] = [at for at in written if self._output.output[at]["type"] in _REPLAYED_TYPES]
        entries += [{"role": "assistant", "content": dropped}] if dropped else []
        note_broken_calls(self._totals, reply)
        made = reply.made_calls(for_client=IN_PROGRESS if self._totals.only else None)
        entries += [call.as_function_call().raw for call in made]
        entries += [call.as_output().raw for call in made]  # behind all calls
        entries += [item.raw for item in self._demand.repeat(self._offer, reply)] if is_missed else []
        self._append_history(entries)
        self._log.add_history(entries)
        return reply.finished

    def _may_repair(self) -> bool:
        """Whether the model is asked for broken calls, although the client has calls to run."""
        left = self._tokens_left()
        has_tokens = left is None or left >= _MIN_OUTPUT_TOKENS
        return bool(self._totals.only) and has_tokens and self._totals.turns < self._max_turns

    def _first_piece(self) -> Generator[Command, Any, Piece]:
        """Send the request; with a compacted or truncated history where it is too long and the request allows it."""
        while True:
            try:
                return cast("Piece", (yield Ask(self.model_request())))
            except ModelFault as fault:
                if self.sampling.max_output_is_ceiling and self.request.max_output_tokens and fault.is_about_length:
                    self.request = msgspec.structs.replace(self.request, max_output_tokens=None)
                elif fault.code != CONTEXT_LENGTH_EXCEEDED:
                    raise
                elif (compactor := self._shrinking_compactor()) is not None:
                    yield from self._compact(compactor)
                elif self.response.truncation == "auto" and (shorter := truncate_history(self._history)) is not None:
                    self._history = shorter
                else:
                    raise

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
            sampling=self.sampling,
            reasoning=request.reasoning,
            verbosity=request.text.verbosity if request.text else None,
            user=request.user,
            compact_threshold=self._compaction.upstream_threshold,
            compaction_trigger=self._compaction.is_upstream_triggered,
        )

    def _tokens_left(self) -> int | None:
        limit, usage = self.request.max_output_tokens, self._totals.usage
        used = usage.output_tokens - self._totals.summary_tokens if usage else 0
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
            yield from self._compact(compactor, is_last=usage is not None)

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

    def _compact(self, compactor: Compactor, *, is_last: bool = False) -> Commands:
        """Replace the history by a compacted window, and add the compaction item to the output."""
        history = self._current_transcript()
        item = {"id": new_id("cmp_"), **_UNFINISHED_COMPACTION}
        index = self._output.next_index
        yield Emit([self._output.begin(item)])
        if self._compaction.is_triggered:
            yield Emit([wire.CompactionCompacting(item_id=item["id"], output_index=index)])
        done = yield from compactor.compact(item["id"], history, self.model_request(), self._read_summary)
        self._totals.usage = (self._totals.usage or Usage()) + done.usage
        self._totals.summary_tokens += done.usage.output_tokens
        self.compacted, self.response.compaction = done, done.note
        self._history = self._compaction.with_attachments(done.window)
        self._transcript, self._transcript_end = done.window, index + 1
        event = self._output.end(index, {**item, "encrypted_content": done.encrypted_content})
        saved = SavedCompaction([one.raw for one in done.window], done.note, index + 1, is_last)
        yield Emit([event], self._complete(Step(self._totals, compaction=saved)))

    def _read_summary(self, request: ModelRequest, reply: SummaryReply) -> Commands:
        piece = cast("Piece", (yield Ask(request, for_summary=True)))
        reply.add(piece)
        while not (isinstance(piece, Finished) or reply.is_too_long):
            piece = cast("Piece", (yield NextPiece()))
            reply.add(piece)

    def _current_transcript(self) -> list[Item]:
        """The visible items as they are stored: hosted calls as their own items, attachments by id."""
        return [*self._transcript, *map(items.read, self._output.output[self._transcript_end :])]

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
                if not reply.may_begin(first):
                    return
                if not (reply.is_cut and first.is_hosted and not first.is_begun):  # a call that will not run
                    yield from self._begin_call(first, reply)
                    if not reply.may_end(first):
                        return
                    yield from self._end_call(first, reply)
                reply.waiting.popleft()
            elif self._demand.is_open(self._offer, reply):
                return
            else:
                reply.waiting.popleft()
                for piece in first:
                    yield Emit(self._write(piece))

    def _new_call(self, piece: CallPiece, reply: ReplyQueue) -> WrittenCall:
        """Decide who runs a call, or why it is refused."""
        check_not_withdrawn(self._offer, piece.name, self.response.model)
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
            case owner if not (is_run_by_client(owner) or self._may_run_more()):
                call.refusal = _NO_MORE_CALLS
            case owner:
                self._totals.hosted_calls += not is_run_by_client(owner)
                reply.has_accepted_call = True
        return call

    def _begin_call(self, call: WrittenCall, reply: ReplyQueue) -> Commands:
        """Begin the item of a call, once."""
        if call.is_begun:
            return
        call.is_begun = True
        yield Emit(self._output.close())
        if call.refusal or call.owner is None or call.interrupted is not None:
            return
        if isinstance(call.owner, ClientSide):
            opened = OpenCall(
                self._output.next_index,
                name=call.owner.name,
                call_id=call.call_id,
                is_custom=call.owner.is_custom,
                namespace=call.owner.namespace,
                is_search=call.owner.is_search,
            )
            call.output_index = opened.index
            self._open_call = call
            yield Emit([self._output.begin(opened.item()), *call.begin(opened)])
        elif call.hosted is not None:  # it was opened beside another one
            self._begin_item(call, call.hosted)
            begun = [self._output.begin(call.hosted.item), *call.hosted.early_events()]
            step = None
            if call.is_started:
                self._beside.remove(call)
                step = self._begun_step(reply, call, call.hosted)
            yield Emit(begun, step)
        elif (hosted := (yield from self._open(call, call.owner))) is not None:
            self._begin_item(call, hosted)
            yield Emit([self._output.begin(hosted.item), *hosted.started_events(), *call.begin(hosted)])

    def _open(self, call: WrittenCall, owner: ServerSide) -> Generator[Command, Any, GuardedCall | None]:
        """Open a hosted call; None if its tool refuses it."""
        arguments = call.arguments if call.is_written_whole else ""
        command = Open(WholeCall(call.name, call.call_id, arguments), owner.tool_index)
        opened = cast("GuardedCall | RefusedCall", (yield command))
        if isinstance(opened, RefusedCall):
            call.refusal, call.is_broken = opened.reason, opened.is_broken
            if call.is_broken:
                call.refusal += f" {advice(self._totals, call.name)}"
            return None
        return opened

    def _begin_item(self, call: WrittenCall, hosted: GuardedCall) -> None:
        self._open_call = call
        call.output_index = hosted.output_index = self._output.next_index

    def _end_call(self, call: WrittenCall, reply: ReplyQueue) -> Commands:
        """End the item of a call; a hosted call is run before, unless the reply was cut off."""
        call.is_ended = True
        if call.client_call is not None:
            events, item = call.close(is_cut=reply.is_cut)
            yield Emit([*events, self._close_call(call, item)])
        elif call.interrupted is not None:
            call.output = call.interrupted.text
            begun = call.interrupted
            events = self._whole_item(begun.added or begun.item, begun.early, begun.item)
            ended = EndedCall(reply.key_of(call), call.output)
            yield Emit(events, self._complete(Step(self._totals, ended=ended)))
        elif call.hosted is not None and reply.is_cut:
            yield Emit(self._interrupt(call, "The reply was cut off before the call was run."))
        elif call.hosted is not None:
            done = yield from self._run_call(call, call.hosted, reply)
            call.output, call.awaits_client, call.is_broken = done.text, done.awaits_client, done.is_broken
            if call.is_broken:
                call.output += f" {advice(self._totals, call.name)}"
            event = self._close_call(call, done.item)
            self._count_web_requests(done.web_requests)
            ended = EndedCall(reply.key_of(call), call.output, done.awaits_client, done.is_broken)
            saved = self._unsaved(reply)  # of a call that the client runs: no step precedes it
            yield Emit([event], self._complete(Step(self._totals, ended=ended, reply=saved)))

    def _run_call(self, call: WrittenCall, hosted: GuardedCall, reply: ReplyQueue) -> Generator[Command, Any, ToolDone]:
        """Run a call, unless it runs already; between two of its items, end the one and begin the other."""
        if call.is_started or is_run_by_client(call.owner):
            run = Run(call.named(hosted))
        else:
            beside = yield from self._open_beside(call, hosted.serial_key, reply)
            step = self._begun_step(reply, call, hosted, beside)
            run = Run(call.named(hosted), [one.named(one.hosted) for one in beside if one.hosted is not None], step)
        done = cast("NextItem | ToolDone", (yield run))
        while isinstance(done, NextItem):
            ended = self._output.end(call.output_index, done.done)
            call.output_index = hosted.output_index = self._output.next_index
            next_begun = self._output.begin(done.begun)
            yield Emit([ended, next_begun], self._begun_step(reply, call, hosted))
            done = cast("NextItem | ToolDone", (yield Continue(hosted)))
        return done

    def _open_beside(
        self, call: WrittenCall, key: str | None, reply: ReplyQueue
    ) -> Generator[Command, Any, Sequence[WrittenCall]]:
        """Open the other hosted calls of the reply, once, with all of their arguments; those that run at the same time.

        Of calls with the same key only the first one does. The others are run when those before them have ended.
        """
        if reply.is_opened:
            return ()
        reply.is_opened = True
        keys = {key} - {None}
        for one in reply.calls.values():
            if one is call or not one.runs_here:
                continue
            assert isinstance(one.owner, ServerSide)  # noqa: S101 - only those run here
            one.hosted = yield from self._open(one, one.owner)
            if one.hosted is not None:
                one.hosted.write_early(one.arguments)
                one.is_started = one.hosted.serial_key not in keys
                keys |= {one.hosted.serial_key} - {None}
        self._beside = [one for one in reply.calls.values() if one.is_started]
        return [*self._beside]

    def _count_web_requests(self, count: int) -> None:
        self._totals.web_requests += count
        if self._totals.web_requests:
            self.response.tool_usage = ToolUsage(web_search=WebSearchUsage(self._totals.web_requests))

    def _interrupt(self, call: WrittenCall, reason: str) -> list[AnyEvent]:
        """End the item of a call that was not run to its end."""
        if call.hosted is not None:
            return [self._close_call(call, {**call.hosted.failed(reason).item, "status": "incomplete"})]
        events, item = call.close(is_cut=True)
        return [*events, self._close_call(call, {**item, "status": "incomplete"})]

    def _close_call(self, call: WrittenCall, item: dict[str, Any]) -> AnyEvent:
        self._open_call = None
        return self._output.end(call.output_index, item)

    def _may_run_more(self) -> bool:
        return (limit := self.response.max_tool_calls) is None or self._totals.hosted_calls < limit


def _interrupted(key: int, hosted: GuardedCall, *, early: bool = False) -> BegunCall:
    """The end of a call if the server is stopped while it runs; of an `early` one the item has not begun."""
    done = hosted.failed(_INTERRUPTED)
    begun = BegunCall(key, done.item, done.text)
    return msgspec.structs.replace(begun, added=hosted.item, early=hosted.early) if early else begun


def _valid_call_id(call_id: str) -> str:
    """The id that the model gave a call, or a new one: a client must be able to send it back."""
    return call_id if 0 < len(call_id) <= MAX_ID_LENGTH else new_id("call_")
