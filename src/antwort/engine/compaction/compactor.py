"""Compactor of one response: when its history is compacted, and what a compaction contains. No I/O.

`TurnLoop` calls it, and sends the requests for summaries.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from antwort.api.items import Item
from antwort.api.responses import CompactionNote, Usage
from antwort.api.token_estimate import estimate_item
from antwort.engine.compaction.opening import SealedWindow, TenantSealer, is_request_message, message_digest
from antwort.engine.compaction.retention import Budgets, Retained, retain
from antwort.engine.compaction.summary import extract, problem_of, shorter_request, summary_item, summary_request
from antwort.engine.ports import Finished, ModelFault, ModelRequest, Piece, RefusalPiece, TextPiece
from antwort.engine.truncate import CONTEXT_LENGTH_EXCEEDED

_MAX_CHARS_PER_TOKEN = 16  # in no language does a text of the budget have more; a longer one is not read to its end
_MIN_SHARE = 10
"""A compaction that removes less than this fraction (1 / 10) of the threshold is not worth a request."""


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
    usage: Usage = field(default_factory=Usage)
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

    def add(self, piece: Piece) -> None:
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


@dataclass(frozen=True)
class Compactor:
    """The compaction of one response."""

    sealer: TenantSealer
    model: str
    """The name of the model that writes the summary, at its backend."""
    budgets: Budgets
    threshold: int | None = None
    """Tokens above which the history is compacted; None if only a trigger compacts it."""
    is_client_managed: bool = False
    """The client sends the whole history with each request, and may add messages before the compaction item."""

    def is_due(self, history: Sequence[Item], tokens: int) -> bool:
        """Whether a history of so many tokens is above the threshold, and becomes shorter by a compaction."""
        if self.threshold is None or tokens <= self.threshold:
            return False
        return retain(history, self.budgets).dropped_tokens * _MIN_SHARE >= self.threshold

    def compact(
        self, item_id: str, history: Sequence[Item], base: ModelRequest, ask: AskForSummary
    ) -> Generator[Any, Any, Compacted]:
        """Compact a history. `base` is the request that the model would get next, with the same history."""
        retained = retain(history, self.budgets)
        reply = SummaryReply(self.budgets.summary)
        problem = yield from self._summarize(base, retained, reply, ask)
        text = reply.text if problem is None else extract(history, self.budgets.summary)
        window = retained.window(summary_item(item_id, text, retained.identifiers))
        messages = [message_digest(item) for item in history if is_request_message(item)]
        sealed = SealedWindow([item.raw for item in window], messages if self.is_client_managed else None)
        note = CompactionNote(
            method="summary" if problem is None else "extract",
            reason=problem,
            tokens_before=sum(map(estimate_item, history)),
            tokens_after=sum(map(estimate_item, window)),
        )
        token = self.sealer.seal(item_id, sealed)
        return Compacted(window, token, retained.user_messages, note, reply.usage)

    def _summarize(
        self, base: ModelRequest, retained: Retained, reply: SummaryReply, ask: AskForSummary
    ) -> Generator[Any, Any, str | None]:
        """Ask for a summary, once more with a shorter history if it is too long; the problem, if there is none."""
        request = summary_request(base, retained, self.budgets.summary, model=self.model)
        for attempt in (request, shorter_request(request)):
            try:
                yield from ask(attempt, reply)
            except ModelFault as fault:
                if fault.code != CONTEXT_LENGTH_EXCEEDED or attempt is not request:
                    return f"The model failed to write a summary: {fault.message}"
            else:
                break
        return reply.problem
