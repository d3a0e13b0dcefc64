"""`ConversationCompactor`: when the conversation of an evaluation is compacted, and which refusals it repairs.

A response over the threshold is compacted before the next request, when all its calls are answered; after the last
response of an evaluation at once, so that the next evaluation starts from the shorter window.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import cast

from weakincentives.adapters.openai.compaction.manager import CompactionManager
from weakincentives.adapters.openai.compaction.support import is_dead_item, is_too_long
from weakincentives.adapters.openai.compaction.window import closed_length, is_encrypted
from weakincentives.adapters.openai.responses.history import RequestHistory
from weakincentives.adapters.openai.wire import COMPACTION, CONTEXT_MANAGEMENT, Wire, rejects_parameter
from weakincentives.adapters.turn import EvaluationLimits, ModelReply
from weakincentives.budget import TokenUsage
from weakincentives.errors import CompactionError, ProviderFault

_logger = logging.getLogger(__name__)

_MIN_MEASURED_BYTES = 2000
"""Tokens per byte are measured over at least so many bytes."""


class ConversationCompactor:
    """Keeps the history of one evaluation below the threshold. It begins with the session's window and the prompt."""

    def __init__(self, manager: CompactionManager, history: RequestHistory, limits: EvaluationLimits) -> None:
        self._manager = manager
        self._history = history
        self._limits = limits
        self._accepted = len(history.items) - 1  # without the prompt
        self._tokens = manager.state.window_tokens
        self._is_sum = False  # whether `_tokens` adds up several model calls of one response
        self._has_new_compaction = False
        self._first: tuple[int, int] | None = None  # tokens and plain bytes of the first request with this window
        self._tools: Sequence[Wire] = ()
        self._turn = -1
        self._repaired: set[str] = set()

    def parameters(self) -> Wire:
        """The request parameters of compaction."""
        if not self._manager.compacts_on_server:
            return {}
        threshold = self._manager.config.threshold_tokens
        return {CONTEXT_MANAGEMENT: [{"type": COMPACTION, "compact_threshold": threshold}]}

    def before_request(self, turn: int, tools: Sequence[Wire]) -> None:
        """Compact the history, if the last response was over the threshold."""
        if turn != self._turn:  # else the request is retried
            self._turn, self._repaired = turn, set()
        self._tools = tools
        if self._has_new_compaction:
            self._absorb()
        elif self._is_over_threshold():
            items = self._history.items
            length = self._accepted if turn == 0 else len(items)  # a new prompt stays as it is, after the window
            with self._deadline_errors():
                self._replace([*self._manager.compact(items[:length]), *items[length:]], items[length:])
            self._limits.check_tokens(None)

    def repair(self, fault: ProviderFault) -> bool:
        """Whether the request can be sent again, once for each reason, after what was refused has been changed."""
        manager = self._manager
        if manager.compacts_on_server and rejects_parameter(fault.status, fault.payload, CONTEXT_MANAGEMENT):
            if manager.config.mode == "server":
                raise self._error("the server refuses context_management: use mode='auto' or 'client'", fault)
            _logger.info("the server refuses context_management; the compaction endpoint is used: %s", fault)
            manager.support.context_management = False
            return True
        if is_dead_item(fault):
            if "dead item" in self._repaired:
                what = "the context was still refused after it was rebuilt; start a new session"
                raise self._error(what, fault)
            self._repaired.add("dead item")
            items = self._history.items
            with self._deadline_errors():
                self._replace(manager.rebuild(items, fault), items[self._accepted :])
            self._limits.check_tokens(None)
            return True
        if is_too_long(fault) and "too long" not in self._repaired:
            self._repaired.add("too long")
            return self._shorten()
        return False

    def after_response(self, reply: ModelReply) -> None:
        """Note the tokens of the request; after the last response of the evaluation, compact and keep the window."""
        manager = self._manager
        tokens = reply.usage.input_tokens or manager.estimate(self._history.items)
        self._has_new_compaction = any(is_encrypted(cast("Wire", item)) for item in reply.items)
        if self._has_new_compaction:
            tokens = min(tokens, self._tokens_before_compaction())
        self._accepted = len(self._history.items)
        self._tokens, self._is_sum = tokens, bool(reply.native_calls)
        if self._has_new_compaction:
            manager.support.context_management = True
        elif not self._is_sum:
            manager.measured(tokens)
            self._calibrate(tokens)
            if manager.config.mode == "auto" and manager.compacts_on_server and manager.should_compact(tokens):
                self._note_ignored()
        if not reply.calls and reply.error is None:
            self._history.append_items(reply.items)
            self._accepted = len(self._history.items)
            self._finish()

    def take_usage(self) -> TokenUsage:
        """The usage of compaction requests since the last call."""
        return self._manager.take_usage()

    def close(self) -> None:
        """Keep the window for the next evaluation: all that the provider has accepted, without unanswered calls."""
        items = self._history.items[: self._accepted]
        tokens = min(self._tokens, self._manager.estimate(items)) if self._is_sum else self._tokens
        self._manager.store(items[: closed_length(items)], tokens)

    # ── compacting ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _is_over_threshold(self) -> bool:
        manager = self._manager
        if manager.compacts_on_server or not manager.should_compact(self._tokens):
            return False
        if self._is_sum:
            self._tokens, self._is_sum = manager.count(self._history.items, self._tools), False
        return manager.should_compact(self._tokens)

    def _finish(self) -> None:
        """Compact after the last response. The answer is complete, so a failure only delays the compaction."""
        if self._has_new_compaction:
            self._absorb()
            return
        deadline = self._limits.deadline
        if (deadline is not None and deadline.expired) or not self._is_over_threshold():
            return
        try:
            self._replace(self._manager.compact(self._history.items))
        except CompactionError as error:
            _logger.warning("not compacted; the next evaluation with this session tries again: %s", error)

    def _calibrate(self, tokens: int) -> None:
        """Measure tokens per byte by the growth since the first request: tools and encrypted items cancel out."""
        size = self._history.size - self._history.encrypted_size
        if self._first is None:
            self._first = (tokens, size) if any(map(is_encrypted, self._history.items)) else (0, 0)
        first_tokens, first_size = self._first
        if size - first_size >= _MIN_MEASURED_BYTES:
            self._manager.calibrate(tokens - first_tokens, size - first_size)

    def _tokens_before_compaction(self) -> int:
        """An estimate of what the provider has compacted. The usage of the response includes the summary."""
        known = 0 if self._is_sum else self._tokens
        new = self._history.items[self._accepted if known else 0 :]
        return max(known + self._manager.estimate(new), self._manager.config.threshold_tokens)

    def _absorb(self) -> None:
        self._has_new_compaction = False
        self._replace(self._manager.absorb(self._history.items, self._tokens))

    @contextmanager
    def _deadline_errors(self) -> Generator[None]:
        """Report a compaction that failed because the deadline passed as the evaluation's `DeadlineExceededError`."""
        deadline = self._limits.deadline
        try:
            yield
        except CompactionError as error:
            if deadline is not None and deadline.expired:
                raise self._limits.deadline_error(self._turn) from error
            raise

    def _shorten(self) -> bool:
        """Compact the part that the provider has accepted before: the new part made the input too long."""
        items = self._history.items
        length = closed_length(items[: self._accepted])
        with self._deadline_errors():
            window = self._manager.compact(items[:length])
        if window == items[:length]:
            return False
        self._replace([*window, *items[length:]], items[length:])
        self._limits.check_tokens(None)
        return True

    def _replace(self, items: list[Wire], new: Sequence[Wire] = ()) -> None:
        """Use another history. It may end with some of the `new` items, which the provider has not accepted yet."""
        self._history.replace(items)
        pending = takewhile(lambda pair: pair[0] == pair[1], zip(reversed(items), reversed(new), strict=False))
        self._accepted = len(items) - len(list(pending))
        self._tokens, self._is_sum, self._first = 0, False, None

    def _note_ignored(self) -> None:
        """The server has accepted `context_management` and not compacted: it ignores unknown parameters."""
        if self._manager.support.context_management is None:
            _logger.info("the server ignores context_management; the compaction endpoint is used")
            self._manager.support.context_management = False

    def _error(self, what: str, fault: ProviderFault) -> CompactionError:
        tokens = self._tokens or self._manager.estimate(self._history.items)
        return CompactionError(f"{what}: {fault}", token_count=tokens, original_error=fault)
