"""Compactor of one response: when its history is compacted, and what a compaction contains. No I/O.

`TurnLoop` calls it, and sends the requests for summaries.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from antwort.api.items import Item
from antwort.api.responses import CompactionNote, Usage
from antwort.api.token_estimate import TokenEstimator, estimate_item, estimate_text
from antwort.engine.compaction.opening import SealedWindow, TenantSealer, is_request_message, message_digest
from antwort.engine.compaction.retention import Budgets, Retained, retain
from antwort.engine.compaction.summary import extract, problem_of, shorter_request, summary_item, summary_request
from antwort.engine.ports import (
    Finished,
    ModelFault,
    ModelRequest,
    Piece,
    ReasoningPiece,
    RefusalPiece,
    SummaryPiece,
    TextPiece,
)
from antwort.engine.truncate import CONTEXT_LENGTH_EXCEEDED
from antwort.sealing import MAX_CONTENT

_MAX_CHARS_PER_TOKEN = 16  # in no language does a text of the budget have more; a longer one is not read to its end
_MIN_SHARE = 10
"""A compaction that removes less than this fraction (1 / 10) of the tokens is not worth a request."""


@dataclass(frozen=True)
class Compacted:
    """A compaction: the window that a model sees from now on, and its encrypted form."""

    window: list[Item]
    encrypted_content: str
    user_messages: list[Item]
    note: CompactionNote
    usage: Usage


@dataclass
class SummaryReply:
    """The reply of a model to the request for a summary."""

    budget: int
    is_of_part: bool = False
    """Whether it is of a part of the history, because the whole was too long for the model."""
    usage: Usage | None = None
    """None until its end is read."""
    _read: TokenEstimator = field(default_factory=TokenEstimator)
    _text: list[str] = field(default_factory=list[str])
    _length: int = 0
    _is_refusal: bool = False
    _is_cut: bool = False

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def is_too_long(self) -> bool:
        """Whether it cannot be used any more, so that reading it can stop."""
        return self._is_cut

    @property
    def problem(self) -> str | None:
        """Why it cannot be used as a summary; None if it can."""
        return problem_of(self.text, is_refusal=self._is_refusal, is_cut=self._is_cut, budget=self.budget)

    def usage_for(self, request: ModelRequest) -> Usage:
        """Its usage; an estimate if its end was not read. A reply without any text, whose model failed, has none."""
        if self.usage is not None or not self._read.tokens:
            return self.usage or Usage()
        given, written = _estimate_input(request), self._read.tokens
        return Usage(input_tokens=given, output_tokens=written, total_tokens=given + written)

    def add(self, piece: Piece) -> None:
        if isinstance(piece, (TextPiece, RefusalPiece, ReasoningPiece, SummaryPiece)):
            self._read.add(piece.text)
        match piece:
            case TextPiece():
                self._text.append(piece.text)
                self._length += len(piece.text)
                self._is_cut = self._length > _MAX_CHARS_PER_TOKEN * self.budget
            case RefusalPiece():
                self._is_refusal = True
            case Finished():
                self.usage = piece.usage
                self._is_refusal = self._is_refusal or piece.reason == "content_filter"
                self._is_cut = self._is_cut or piece.reason == "length"
            case _:
                pass


AskForSummary: TypeAlias = Callable[[ModelRequest, SummaryReply], Generator[Any, Any, None]]
"""Sends a request to the model and adds the pieces of the reply; the generator yields the commands of `TurnLoop`."""


def _estimate_input(request: ModelRequest) -> int:
    tools = msgspec.json.encode([(tool.name, tool.full_description, tool.parameters) for tool in request.tools])
    texts = (request.instructions or "", tools.decode() if request.tools else "")
    return sum(map(estimate_text, texts)) + sum(map(estimate_item, request.items))


def _saves_enough(history: Sequence[Item], budgets: Budgets, tokens: int) -> bool:
    return retain(history, budgets).dropped_tokens * _MIN_SHARE >= max(tokens, _MIN_SHARE)


@dataclass(frozen=True)
class Compactor:
    """The compaction of one response."""

    sealer: TenantSealer
    model: str
    """The name of the model that writes the summary, at its backend."""
    budgets: Budgets
    threshold: int | None = None
    """Tokens above which the history is compacted; None if only a trigger compacts it."""
    client_history: Sequence[Item] | None = None
    """All items of the request, if the client keeps the history. It may add messages before the compaction item."""
    is_other_model: bool = False
    """Whether the summary is written by another model than that of the conversation."""

    def is_due(self, history: Sequence[Item], tokens: int) -> bool:
        """Whether a history of so many tokens is above the threshold, and becomes shorter by a compaction."""
        if self.threshold is None or tokens <= self.threshold:
            return False
        return _saves_enough(history, self.budgets, self.threshold)

    def shrink(self, history: Sequence[Item]) -> Compactor | None:
        """The compactor for a history that the model finds too long, whatever the threshold: it keeps about half of it.

        None if the request does not allow a compaction, or if it would save too little.
        """
        if self.threshold is None:
            return None
        tokens = sum(map(estimate_item, history))
        budgets = self.budgets.within(tokens)
        return dataclasses.replace(self, budgets=budgets) if _saves_enough(history, budgets, tokens) else None

    def compact(
        self, item_id: str, history: Sequence[Item], base: ModelRequest, ask: AskForSummary
    ) -> Generator[Any, Any, Compacted]:
        """Compact a history. `base` is the request that the model would get next, with the same history."""
        retained = retain(history, self.budgets)
        reply, usage, problem = yield from self._summarize(base, retained, ask)
        tokens = sum(map(estimate_item, history))
        budgets = self.budgets
        if reply.is_of_part:  # the window must be shorter than the history, whatever the budgets
            budgets = budgets.within(tokens)
            retained = retain(history, budgets)
        text = reply.text if problem is None else extract(history, budgets.summary)
        window = retained.window(summary_item(item_id, text, retained.identifiers))
        sealed = SealedWindow([item.raw for item in window], self._known_messages([*history, *retained.user_messages]))
        note = CompactionNote(
            method="summary" if problem is None else "extract",
            reason=problem,
            tokens_before=tokens,
            tokens_after=sum(map(estimate_item, window)),
        )
        token = self._seal(item_id, sealed)
        return Compacted(window, token, retained.user_messages, note, usage)

    def _seal(self, item_id: str, sealed: SealedWindow) -> str:
        if (size := len(msgspec.json.encode(sealed))) > MAX_CONTENT:
            raise ModelFault(
                f"The compacted history has {size} bytes; at most {MAX_CONTENT} are possible. The instructions, the "
                "last message of the user and the calls without an output are kept as they are: shorten them.",
                code="compaction_too_large",
                status=400,
            )
        return self.sealer.seal(item_id, sealed)

    def _known_messages(self, history: Sequence[Item]) -> list[str] | None:
        """Digests of the compacted messages, also of those that an earlier compaction replaced."""
        if self.client_history is None:
            return None
        messages = (item for item in (*self.client_history, *history) if is_request_message(item))
        return list(dict.fromkeys(map(message_digest, messages)))

    def _summarize(
        self, base: ModelRequest, retained: Retained, ask: AskForSummary
    ) -> Generator[Any, Any, tuple[SummaryReply, Usage, str | None]]:
        """Ask for a summary, once more with a shorter history if it is too long.

        The reply, its usage, and its problem if it has one.
        """
        request = summary_request(
            base, retained, self.budgets.summary, model=self.model, is_other_model=self.is_other_model
        )
        attempt, reply = request, SummaryReply(self.budgets.summary)
        for attempt in (request, shorter_request(request)):
            reply = SummaryReply(self.budgets.summary, is_of_part=attempt is not request)
            try:
                yield from ask(attempt, reply)
            except ModelFault as fault:
                if fault.code != CONTEXT_LENGTH_EXCEEDED or attempt is not request:
                    problem = f"The model failed to write a summary: {fault.message}"
                    return reply, reply.usage_for(attempt), problem
            else:
                break
        return reply, reply.usage_for(attempt), reply.problem
