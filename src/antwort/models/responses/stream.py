"""Parses an upstream Responses API stream into pieces. Pure: events in, pieces out.

Deltas are emitted immediately. If a server sends the full text only in a `.done` event, or its deltas are incomplete,
the rest is emitted from the `.done` event.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct

from antwort.api import items
from antwort.api.ids import new_id
from antwort.api.responses import InputDetails, OutputDetails, Usage
from antwort.engine.ports import (
    CallPiece,
    CompactionPiece,
    EncryptedReasoning,
    Finished,
    ItemPiece,
    Piece,
    ReasoningPiece,
    RefusalPiece,
    SummaryPiece,
    TextPiece,
)
from antwort.models import upstream_errors
from antwort.models.logprobs import parse_logprobs
from antwort.models.upstream_errors import ToFault
from antwort.net.sse import ServerEvent

Raw: TypeAlias = dict[str, Any]
_PieceType: TypeAlias = Callable[[str], TextPiece | RefusalPiece | ReasoningPiece | SummaryPiece]
_CALLS = ("function_call", "custom_tool_call")


class _ResponsesEvent(Struct):
    """The union of the fields of all relevant events."""

    type: str = ""
    output_index: int = 0
    content_index: int = 0
    summary_index: int = 0
    delta: str | None = None
    text: str | None = None
    refusal: str | None = None
    arguments: str | None = None
    input: str | None = None
    item: Raw | None = None
    response: Raw | None = None
    logprobs: Any = None


class _TokensDetails(Struct):
    cached_tokens: int | None = 0
    cache_write_tokens: int | None = 0
    reasoning_tokens: int | None = 0


class _ResponsesUsage(Struct):
    input_tokens: int | None = 0
    output_tokens: int | None = 0
    input_tokens_details: _TokensDetails | None = None
    output_tokens_details: _TokensDetails | None = None


class _EventType(Struct):
    type: str = ""
    error: Any = None


_type_decoder = msgspec.json.Decoder(_EventType)
_decoder = msgspec.json.Decoder(_ResponsesEvent)

# Text events by stem: the piece type, and the field of the `.done` event with the full text.
_TEXT_EVENTS: dict[str, tuple[_PieceType, Literal["text", "refusal"]]] = {
    "response.output_text": (TextPiece, "text"),
    "response.refusal": (RefusalPiece, "refusal"),
    "response.reasoning_text": (ReasoningPiece, "text"),
    "response.reasoning_summary_text": (SummaryPiece, "text"),
}
_ARGUMENT_EVENTS: dict[str, Literal["arguments", "input"]] = {
    "response.function_call_arguments": "arguments",
    "response.custom_tool_call_input": "input",
}
_EVENT_OF_PART = {
    "output_text": "response.output_text",
    "refusal": "response.refusal",
    "reasoning_text": "response.reasoning_text",
    "summary_text": "response.reasoning_summary_text",
}
_FINAL_EVENTS = {"response.completed", "response.incomplete", "response.failed", "response.cancelled"}


@dataclass
class _StreamedCall:
    """A call in progress. A custom tool's free text is emitted as JSON with one field `input`."""

    index: int
    is_custom: bool
    emitted: int = 0
    is_closed: bool = False


class ResponsesStream:
    """Parser of one answer. `top_logprobs` is the requested number of alternatives; None means no logprobs.

    `to_fault` maps an error in the stream to the fault to raise.
    """

    def __init__(
        self,
        *,
        to_fault: ToFault,
        top_logprobs: int | None = None,
        new_call_id: Callable[[], str] = lambda: new_id("call_"),
    ) -> None:
        self._to_fault = to_fault
        self._top_logprobs = top_logprobs
        self._new_call_id = new_call_id
        self._calls: dict[int, _StreamedCall] = {}
        self._emitted: dict[tuple[str, int, int], int] = {}
        self._phases: dict[int, str] = {}
        self._item: ItemPiece | None = None
        """The last item of which a piece was emitted."""
        self._finished: Finished | None = None

    @property
    def is_done(self) -> bool:
        return self._finished is not None

    def read(self, event: ServerEvent) -> Iterator[Piece]:
        """The pieces of one event; `ModelFault` if it is an error or malformed."""
        if event.data.strip() == b"[DONE]":
            return
        try:
            kind = _type_decoder.decode(event.data)
            name = kind.type or event.name
            failed = name == "error" or (kind.error and not name)
            read = None if failed or not _is_relevant(name) else _decoder.decode(event.data)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise upstream_errors.malformed_answer() from error
        if failed:
            raise self._to_fault(upstream_errors.parse_error_body(event.data))
        if read is not None:
            yield from self._read_event(name, read)

    def close(self) -> Iterator[Piece]:
        """`Finished`; `ModelFault` if the stream ended early."""
        if self._finished is None:
            raise upstream_errors.answer_truncated()
        yield self._finished

    def _read_event(self, name: str, event: _ResponsesEvent) -> Iterator[Piece]:
        stem, _, step = name.rpartition(".")
        if stem in _TEXT_EVENTS:
            yield from self._read_text(stem, step, event)
        elif stem in _ARGUMENT_EVENTS:
            yield from self._read_arguments(stem, step, event)
        elif stem == "response.output_item" and event.item is not None:
            yield from self._read_item(event.output_index, event.item, is_done=step == "done")
        elif name in _FINAL_EVENTS:
            self._finish(name, event.response or {})

    # ── text ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _read_text(self, stem: str, step: str, event: _ResponsesEvent) -> Iterator[Piece]:
        piece, repeated = _TEXT_EVENTS[stem]
        part = event.summary_index if piece is SummaryPiece else event.content_index
        if step == "delta":
            yield from self._emit_text(stem, event.output_index, part, event.delta or "", event.logprobs)
        elif step == "done":
            yield from self._emit_rest(stem, event.output_index, part, getattr(event, repeated))

    def _emit_text(self, stem: str, index: int, part: int, text: str, logprobs: object = None) -> Iterator[Piece]:
        entries = parse_logprobs(logprobs, self._top_logprobs)
        if not (text or entries):
            return
        piece, _ = _TEXT_EVENTS[stem]
        yield from self._emit_item(index)
        key = (stem, index, part)
        self._emitted[key] = self._emitted.get(key, 0) + len(text)
        if piece is TextPiece:
            yield TextPiece(text, entries)
        else:
            yield SummaryPiece(text, part) if piece is SummaryPiece else piece(text)

    def _emit_item(self, index: int) -> Iterator[Piece]:
        """Name the item of the next piece, if it is another one. Not before its first piece: it may stay empty."""
        item = ItemPiece(index, self._phases.get(index))
        if item != self._item:
            self._item = item
            yield item

    def _emit_rest(self, stem: str, index: int, part: int, full_text: object) -> Iterator[Piece]:
        if isinstance(full_text, str):
            yield from self._emit_text(stem, index, part, full_text[self._emitted.get((stem, index, part), 0) :])

    # ── calls and items ──────────────────────────────────────────────────────────────────────────────────────────────

    def _read_item(self, index: int, item: Raw, *, is_done: bool) -> Iterator[Piece]:
        kind = item.get("type")
        if kind in _CALLS:
            yield from self._read_call(index, item, custom=kind == "custom_tool_call", is_done=is_done)
        elif kind in ("message", "reasoning"):
            yield from self._read_phase(index, item)
            yield from self._read_rest(index, item) if is_done else ()
        elif is_done and kind == "compaction":  # `.added` has another ciphertext
            yield CompactionPiece(check_item(item))

    def _read_phase(self, index: int, item: Raw) -> Iterator[Piece]:
        if isinstance(phase := item.get("phase"), str):
            self._phases[index] = phase
            if self._item is not None and self._item.index == index:
                yield from self._emit_item(index)

    def _read_rest(self, index: int, item: Raw) -> Iterator[Piece]:
        """The texts of a complete item that its deltas did not contain, and its encrypted content."""
        for stem, part, text in _text_parts(item):
            yield from self._emit_rest(stem, index, part, text)
        if isinstance(item.get("encrypted_content"), str):
            yield from self._emit_item(index)
            yield EncryptedReasoning(item["encrypted_content"])

    def _read_call(self, index: int, item: Raw, *, custom: bool, is_done: bool) -> Iterator[Piece]:
        call = self._calls.get(index)
        if call is None:
            call = self._calls[index] = _StreamedCall(len(self._calls), custom)
            call_id = str(item.get("call_id") or item.get("id") or self._new_call_id())
            yield CallPiece(call.index, str(item.get("name") or ""), call_id, '{"input":"' if custom else "")
        if is_done:
            yield from self._emit_rest_of_arguments(call, str(item.get("input" if custom else "arguments") or ""))

    def _read_arguments(self, stem: str, step: str, event: _ResponsesEvent) -> Iterator[Piece]:
        call = self._calls.get(event.output_index)
        if call is None:
            raise upstream_errors.malformed_answer()
        if step == "delta":
            yield from self._emit_arguments(call, event.delta or "")
        else:
            yield from self._emit_rest_of_arguments(call, getattr(event, _ARGUMENT_EVENTS[stem]) or "")

    def _emit_arguments(self, call: _StreamedCall, text: str) -> Iterator[Piece]:
        call.emitted += len(text)
        if text:
            arguments = json.dumps(text, ensure_ascii=False)[1:-1] if call.is_custom else text
            yield CallPiece(call.index, arguments=arguments)

    def _emit_rest_of_arguments(self, call: _StreamedCall, text: str) -> Iterator[Piece]:
        yield from self._emit_arguments(call, text[call.emitted :])
        if call.is_custom and not call.is_closed:
            yield CallPiece(call.index, arguments='"}')
        call.is_closed = True

    # ── final event ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _finish(self, name: str, response: Raw) -> None:
        if name in ("response.failed", "response.cancelled"):
            error = upstream_errors.parse_error(response.get("error"))
            raise self._to_fault(error)
        usage = parse_usage(response.get("usage"))
        if name == "response.incomplete":
            filtered = _incomplete_reason(response.get("incomplete_details")) == "content_filter"
            self._finished = Finished("content_filter" if filtered else "length", usage)
        else:
            self._finished = Finished("calls" if self._calls else "stop", usage)


def check_item(item: object) -> Raw:
    """The item, unchanged, if this server can take it as input later; else `ModelFault`."""
    if not isinstance(item, dict):
        raise upstream_errors.malformed_answer()
    raw = cast("Raw", item)
    try:
        read = items.parse(raw)
    except msgspec.ValidationError as error:
        raise upstream_errors.malformed_answer() from error
    if read.type == "compaction" and not isinstance(read.id, str):  # its encrypted content is bound to the id
        raise upstream_errors.malformed_answer()
    return raw


def _text_parts(item: Raw) -> Iterator[tuple[str, int, object]]:
    """The texts of a complete message or reasoning item: event stem, part index, text."""
    for name in ("summary", "content"):
        parts = item.get(name)
        for index, part in enumerate(cast("list[Any]", parts) if isinstance(parts, list) else []):
            if isinstance(part, dict) and (stem := _EVENT_OF_PART.get(cast("Raw", part).get("type", ""))):
                yield stem, index, cast("Raw", part).get(_TEXT_EVENTS[stem][1])


def _is_relevant(name: str) -> bool:
    stem, _, step = name.rpartition(".")
    if stem == "response.output_item" or stem in _TEXT_EVENTS or stem in _ARGUMENT_EVENTS:
        return step in ("delta", "done", "added")
    return name in _FINAL_EVENTS


def _incomplete_reason(details: object) -> object:
    return cast("Raw", details).get("reason") if isinstance(details, dict) else None


def parse_usage(given: object) -> Usage:
    """The usage of a response; zeros if the upstream sends none, `ModelFault` if it is malformed."""
    try:
        usage = msgspec.convert(given or {}, _ResponsesUsage)
    except msgspec.ValidationError as error:
        raise upstream_errors.malformed_answer() from error
    input_tokens, output_tokens = usage.input_tokens or 0, usage.output_tokens or 0
    details = usage.input_tokens_details or _TokensDetails()
    cached = InputDetails(details.cached_tokens or 0, details.cache_write_tokens or 0)
    reasoning = usage.output_tokens_details.reasoning_tokens if usage.output_tokens_details else 0
    return Usage(input_tokens, cached, output_tokens, OutputDetails(reasoning or 0), input_tokens + output_tokens)
