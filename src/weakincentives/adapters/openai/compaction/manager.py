"""`CompactionManager`: calls the compaction endpoint, keeps the window in the session, and rebuilds a dead window.

The output of a compaction replaces the history and is kept whole. The items that it replaced stay in the session as
plain items: if the provider cannot decrypt the window any more, it is rebuilt from them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from weakincentives.adapters.openai.compaction.state import CompactionState, TranscriptItem
from weakincentives.adapters.openai.compaction.support import (
    ServerSupport,
    is_dead_item,
    is_missing,
    is_not_implemented,
    is_too_long,
)
from weakincentives.adapters.openai.compaction.window import (
    chunks,
    closed_length,
    is_encrypted,
    newest,
    plain,
    prune,
)
from weakincentives.adapters.openai.config import CompactionConfig
from weakincentives.adapters.openai.responses.history import encode_json
from weakincentives.adapters.openai.sdk import SdkClient
from weakincentives.adapters.openai.wire import (
    COMPACT_PATH,
    COMPACTION,
    COUNT_PATH,
    MESSAGE,
    MalformedResponse,
    Wire,
    as_objects,
    get_count,
    get_str,
    message,
    parse_usage,
    rejects_parameter,
)
from weakincentives.adapters.retry import ThrottlePolicy, with_backoff
from weakincentives.budget import BudgetTracker, TokenUsage
from weakincentives.clock import SYSTEM_CLOCK, Clock
from weakincentives.deadlines import Deadline
from weakincentives.errors import CompactionError, ProviderFault
from weakincentives.runtime import CompactionRebuilt, CompactionUnavailable, ContextCompacted, Session
from weakincentives.runtime.events import CompactionMode

if TYPE_CHECKING:
    from openai import OpenAI

_logger = logging.getLogger(__name__)

_TOKENS_PER_BYTE = 0.25  # of English text and JSON, until a response shows the real ratio
_MIN_TOKENS_PER_BYTE, _MAX_TOKENS_PER_BYTE = 0.05, 0.75  # a response also counts its tools, which are not measured
_GROWTH_DIVISOR = 10
"""A window that stays above the threshold is compacted again when it has grown by this part of the threshold."""
_PART_DIVISOR = 2
"""A history that is compacted in parts is divided into parts of this fraction of the threshold."""
_TRUNCATED = "(The part of this conversation before this message is no longer available.)"


@dataclass(frozen=True)
class RequestLimits:
    """How the requests of a manager are retried and bounded; `tracker` counts their tokens."""

    throttle: ThrottlePolicy = field(default_factory=ThrottlePolicy)
    clock: Clock = SYSTEM_CLOCK
    deadline: Deadline | None = None
    tracker: BudgetTracker | None = None


class CompactionManager:
    """Compacts the messages of one conversation, whose window is the session's `CompactionState`.

    The model that compacts is that of the configuration, else `model`, else the server's default; a server without a
    default refuses the request. `parameters` are added to every compaction request, such as `instructions`.
    The adapter gives its own `limits`, and `support`, which it keeps per server.

        manager = CompactionManager(client, config, session)
        messages = manager.inject_encrypted_items(messages)
        …  # send the messages
        if manager.should_compact(response.usage.input_tokens):
            messages = manager.compact(messages)
    """

    def __init__(
        self,
        client: OpenAI | SdkClient,
        config: CompactionConfig,
        session: Session,
        *,
        model: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        limits: RequestLimits | None = None,
        support: ServerSupport | None = None,
    ) -> None:
        self.config = config
        self.session = session
        self.support = support or ServerSupport()
        self._usage = TokenUsage()
        self._sdk = client if isinstance(client, SdkClient) else SdkClient(client, None)
        name = config.model or model
        self._model_parameter: Wire = {"model": name} if name else {}
        self._parameters = dict(parameters or {})
        self._limits = limits or RequestLimits()
        self._tokens: int | None = None
        self._tokens_per_byte = _TOKENS_PER_BYTE

    @property
    def state(self) -> CompactionState:
        """The state in the session; an empty one before the first compaction."""
        return self.session[CompactionState].latest() or CompactionState()

    @property
    def compacts_on_server(self) -> bool:
        """Whether requests ask the provider to compact while it answers (`context_management`)."""
        config = self.config
        return config.enabled and (
            config.mode == "server" or (config.mode == "auto" and self.support.context_management is not False)
        )

    def should_compact(self, current_tokens: int) -> bool:
        """Whether a context of this many input tokens is to be compacted.

        A window that a compaction did not bring below the threshold is compacted again only after it has grown.
        """
        self._tokens = current_tokens
        threshold = self.config.threshold_tokens
        limit = max(threshold, self.state.tokens_after + threshold // _GROWTH_DIVISOR)
        return self.config.enabled and self.support.endpoint is not False and current_tokens > limit

    def compact(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Compact the messages with the endpoint, keep the result in the session, and return it for the next request.

        Calls that are not answered yet stay as they are, with everything after them. With mode "auto", a server
        without the endpoint leaves the messages unchanged. Raises `CompactionError`.
        """
        items = [_as_wire(one) for one in messages]
        length = closed_length(items)
        if length == 0 or (self.support.endpoint is False and self.config.mode == "auto"):
            return items
        tokens = self.estimate(items) if self._tokens is None else self._tokens
        try:
            with self._unchanged_after_errors():
                window = self._compact_fitting(items[:length], tokens)
        except ProviderFault as fault:
            if is_dead_item(fault):
                return self.rebuild(items, fault)
            if is_missing(fault) and self.config.mode == "auto":
                self._report_missing(fault)
                return items
            raise self._error("the context could not be compacted", tokens, fault) from fault
        self.store([*window, *items[length:]])
        return [*window, *items[length:]]

    def inject_encrypted_items(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The stored window, followed by the messages. Messages that contain the window already are left unchanged."""
        state, items = self.state, [_as_wire(one) for one in messages]
        if items[: len(state.window)] == list(state.window) or any(one in items for one in state.encrypted_items):
            return items
        return [*state.window, *items]

    # ── used by the adapter ──────────────────────────────────────────────────────────────────────────────────────────

    def absorb(self, messages: Sequence[Wire], tokens: int) -> list[Wire]:
        """Drop what the latest compaction item of the messages replaces: the provider has compacted them."""
        items = list(messages)
        window, replaced = prune(items)
        if replaced:
            covered = self._covered(items)
            self._keep_transcript(items[covered:], without=window)
            self._compacted(window, 1, "server", tokens, len(items), TokenUsage())
        return window

    def rebuild(self, messages: Sequence[Wire], fault: ProviderFault) -> list[Wire]:
        """The window again, from the plain transcript: the provider cannot decrypt it (`fault`).

        A transcript above the threshold is compacted in parts; without the endpoint its oldest part is dropped.
        Raises `CompactionError`.
        """
        items = list(messages)
        kept = [one.item for one in self.session[TranscriptItem].view]
        transcript = [*kept, *plain(items[self._covered(items) if kept else 0 :])]
        window = self._recompacted(transcript)
        truncated = window is None
        if window is None:
            window = self._truncate(transcript)
        self.store(window)
        _logger.warning("the window could not be decrypted and was rebuilt from the transcript: %s", fault)
        self.session.dispatch(
            CompactionRebuilt(reason=str(fault), items=len(window), truncated=truncated, **self._event_fields())
        )
        return window

    def take_usage(self) -> TokenUsage:
        """The usage of compaction requests since the last call of this method."""
        usage, self._usage = self._usage, TokenUsage()
        return usage

    def store(self, messages: Sequence[Wire], tokens: int | None = None) -> None:
        """Keep these messages as the window; `tokens` are the input tokens of the last request, if that is known."""
        state, items = self.state, list(messages)
        self.session[CompactionState].seed(
            replace(
                state,
                window=tuple(items),
                covered=self._covered(items),
                encrypted_items=tuple(filter(is_encrypted, items)),
                window_tokens=state.window_tokens if tokens is None else tokens,
            )
        )

    def measured(self, tokens: int) -> None:
        """A request with the window had this many input tokens; the first one corrects `tokens_after`."""
        state = self.state
        if state.compaction_count and not state.window_tokens:  # the first request since the compaction
            self.session[CompactionState].seed(replace(state, tokens_after=tokens, window_tokens=tokens))

    def calibrate(self, tokens: int, size: int) -> None:
        """Plain items of `size` bytes had this many tokens."""
        self._tokens_per_byte = min(max(tokens / size, _MIN_TOKENS_PER_BYTE), _MAX_TOKENS_PER_BYTE)

    def count(self, messages: Sequence[Wire], tools: Sequence[Wire]) -> int:
        """The input tokens of a request with these messages: counted by the server, else estimated."""
        body: Wire = {**self._model_parameter, "input": list(messages), **({"tools": list(tools)} if tools else {})}
        if self.support.counting is not False:
            try:
                return get_count(self._send_once(COUNT_PATH, body), "input_tokens")
            except ProviderFault as fault:  # not retried: an estimate is good enough
                self.support.counting = False if is_missing(fault) else None
                _logger.info("input tokens were not counted, but estimated: %s", fault)
            except MalformedResponse:
                self.support.counting = False
        return self.estimate(messages)

    def estimate(self, messages: Sequence[Wire]) -> int:
        """The tokens of these messages, estimated from their length and the last response."""
        return int(sum(map(self._item_tokens, messages)))

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _compact_fitting(self, items: list[Wire], tokens: int) -> list[Wire]:
        """Compact in one request, or in parts if the model's window is too small. Raises `ProviderFault`."""
        try:
            return self._compact_once(items, tokens)
        except ProviderFault as fault:
            covered = self._covered(items)
            parts = self._parts(items[covered:])
            if not is_too_long(fault) or len(parts) < 2:  # noqa: PLR2004 - one part is what was too long
                raise
        parts[0] = [*items[:covered], *parts[0]]
        return [*self._compact_parts(parts[:-1]), *parts[-1]]

    def _parts(self, items: list[Wire]) -> list[list[Wire]]:
        """The items in parts; each is below the threshold together with the window of the parts before it."""
        return chunks(items, self._item_tokens, self.config.threshold_tokens / _PART_DIVISOR)

    def _compact_parts(self, parts: list[list[Wire]]) -> list[Wire]:
        """Compact the parts one after the other, each together with the window before it."""
        window: list[Wire] = []
        for part in parts:
            window = self._compact_once([*window, *part], self.estimate([*window, *part]))
        return window

    def _compact_once(self, items: list[Wire], tokens: int) -> list[Wire]:
        """One compaction: the endpoint's output, which is the new window. Raises `ProviderFault`."""
        body: Wire = {**self._model_parameter, "input": items, **self._parameters}
        if self.config.zdr_mode and self.support.store_parameter is not False:
            body["store"] = False
        try:
            response = self._send(COMPACT_PATH, body)
        except ProviderFault as fault:
            if "store" not in body or not rejects_parameter(fault.status, fault.payload, "store"):
                raise
            self.support.store_parameter = False  # the endpoint of this server never stores anything
            del body["store"]
            response = self._send(COMPACT_PATH, body)
        window, usage = _parse_compaction(response)
        self.support.endpoint = True
        self._usage += usage
        if self._limits.tracker is not None:
            self._limits.tracker.record(usage)
        self._keep_transcript(items[self._covered(items) :])
        self._compacted(window, len(window), "client", tokens, len(items), usage)
        return window

    def _send(self, path: str, body: Wire) -> Wire:
        limits = self._limits
        return with_backoff(
            lambda: self._send_once(path, body), policy=limits.throttle, deadline=limits.deadline, clock=limits.clock
        )

    def _send_once(self, path: str, body: Wire) -> Wire:
        deadline = self._limits.deadline
        try:
            timeout = None if deadline is None else deadline.remaining
            return self._sdk.send(encode_json(body), timeout=timeout, path=path).body
        except ProviderFault as fault:
            if is_not_implemented(fault):
                fault.should_retry = False
            raise
        except MalformedResponse as error:
            raise ProviderFault(f"the answer is not of this API: {error}", should_retry=False) from error

    def _recompacted(self, transcript: list[Wire]) -> list[Wire] | None:
        """The window for this transcript: its parts compacted one after the other, and the last part as it is.

        None if it has several parts and the server has no endpoint. The session is unchanged unless this succeeds.
        """
        is_short = self.estimate(transcript) <= self.config.threshold_tokens
        *older, last = [transcript] if is_short else self._parts(transcript)
        if older and self.support.endpoint is False:
            return None
        try:
            with self._unchanged_after_errors():
                self._forget_window()
                return [*self._compact_parts(older), *last]
        except ProviderFault as fault:
            if not is_missing(fault):
                raise self._error("the context could not be rebuilt", self.estimate(transcript), fault) from fault
            self.support.endpoint = False
            return None

    @contextmanager
    def _unchanged_after_errors(self) -> Generator[None]:
        """Restore the slices of the session if the block raises."""
        states, items = self.session[CompactionState].all(), self.session[TranscriptItem].all()
        try:
            yield
        except BaseException:
            self.session[CompactionState].seed(states)
            self.session[TranscriptItem].seed(items)
            raise

    def _forget_window(self) -> None:
        self.session[TranscriptItem].clear()
        self.session[CompactionState].seed(replace(self.state, encrypted_items=(), window=(), covered=0))

    # ── state and events ─────────────────────────────────────────────────────────────────────────────────────────────

    def _compacted(
        self, window: list[Wire], covered: int, mode: CompactionMode, tokens: int, length: int, usage: TokenUsage
    ) -> None:
        before = self.state
        after = min(self.estimate(window), tokens)
        state = CompactionState(
            encrypted_items=tuple(filter(is_encrypted, window)),
            last_compaction_tokens=tokens,
            compaction_count=before.compaction_count + 1,
            window=tuple(window),
            covered=covered,
            tokens_after=after,
        )
        self.session[CompactionState].seed(state)
        self._tokens = None
        _logger.info("compacted %d items to %d (%s), about %d of %d tokens", length, len(window), mode, after, tokens)
        self.session.dispatch(
            ContextCompacted(
                mode=mode,
                tokens_before=tokens,
                tokens_after=after,
                compaction_count=state.compaction_count,
                items_before=length,
                items_after=len(window),
                usage=usage,
                **self._event_fields(),
            )
        )

    def _covered(self, items: list[Wire]) -> int:
        """How many leading items stand for the transcript: the output of the latest compaction, if it is there."""
        state = self.state
        return state.covered if items[: state.covered] == list(state.window[: state.covered]) else 0

    def _keep_transcript(self, items: list[Wire], *, without: Sequence[Wire] = ()) -> None:
        kept = {id(item) for item in without}
        for item in plain([item for item in items if id(item) not in kept]):
            self.session[TranscriptItem].append(TranscriptItem(item))

    def _truncate(self, transcript: list[Wire]) -> list[Wire]:
        """The first message, a note, and the newest items up to the threshold. The others stay in the transcript."""
        tail = newest(transcript, self._item_tokens, self.config.threshold_tokens)
        older = transcript[: len(transcript) - len(tail)]
        first = next((item for item in older if item.get("type", MESSAGE) == MESSAGE), None)
        head = [*([first] if first else []), message("developer", _TRUNCATED)]
        window = [*head, *tail]
        self.session[TranscriptItem].seed([TranscriptItem(item) for item in older])
        self.session[CompactionState].seed(replace(self.state, window=tuple(window), covered=len(head)))
        return window

    def _item_tokens(self, item: Wire) -> float:
        return len(encode_json(item)) * self._tokens_per_byte

    def _report_missing(self, fault: ProviderFault) -> None:
        self.support.endpoint = False
        if self.support.reported:
            return
        self.support.reported = True
        reason = f"the server has neither context_management nor {COMPACT_PATH}: the history is not compacted ({fault})"
        _logger.warning("%s", reason)
        self.session.dispatch(CompactionUnavailable(reason=reason, **self._event_fields()))

    def _event_fields(self) -> dict[str, Any]:
        return {"session_id": self.session.session_id, "created_at": self._limits.clock.now()}

    def _error(self, what: str, tokens: int, fault: ProviderFault) -> CompactionError:
        cure = ": use mode='auto', or a server that has it" if is_missing(fault) else ""
        return CompactionError(f"{what} ({tokens} tokens): {fault}{cure}", token_count=tokens, original_error=fault)


def _as_wire(item: object) -> Wire:
    """An input item as a dictionary; items of the SDK's responses are converted."""
    if isinstance(item, dict):
        return cast("Wire", item)
    if isinstance(item, Mapping):
        return dict(cast("Mapping[str, Any]", item))
    convert: Callable[..., Wire] | None = getattr(item, "model_dump", None)
    if convert is None:
        raise TypeError(f"a message must be a dictionary or an item of a response, not {item!r}")
    return convert(mode="json", exclude_unset=True, warnings=False)


def _parse_compaction(response: Wire) -> tuple[list[Wire], TokenUsage]:
    try:
        window, usage = as_objects(response.get("output"), "output"), parse_usage(response)
        is_compacted = any(is_encrypted(item) and get_str(item, "encrypted_content") for item in window)
    except MalformedResponse as error:
        raise ProviderFault(f"the answer is not of the compaction API: {error}", should_retry=False) from error
    if not is_compacted:
        raise ProviderFault(f"the output has no item of type {COMPACTION!r} with content", should_retry=False)
    return window, usage
