"""The events of a server that speaks the Responses API itself, as pieces. Pure: events in, pieces out.

Deltas are passed on as they come. Where a server sends only the whole thing at the end,
or leaves something out of its deltas, the rest is passed on from there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct

from antwort.api.ids import new_id
from antwort.api.responses import InputDetails, OutputDetails, Usage
from antwort.engine.ports import (
    CallPiece,
    EncryptedReasoning,
    Finished,
    Piece,
    ReasoningPiece,
    RefusalPiece,
    SummaryPiece,
    TextPiece,
)
from antwort.models import upstream_errors
from antwort.models.logprobs import read_logprobs
from antwort.net.sse import ServerEvent

Raw: TypeAlias = dict[str, Any]
Speaker: TypeAlias = Callable[[str], TextPiece | RefusalPiece | ReasoningPiece | SummaryPiece]
_CALLS = ("function_call", "custom_tool_call")


class _Event(Struct):
    """What the events that matter here have, all in one."""

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


class _Details(Struct):
    cached_tokens: int | None = 0
    cache_write_tokens: int | None = 0
    reasoning_tokens: int | None = 0


class _Usage(Struct):
    input_tokens: int | None = 0
    output_tokens: int | None = 0
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _Kind(Struct):
    type: str = ""
    error: Any = None


_kind = msgspec.json.Decoder(_Kind)
_decoder = msgspec.json.Decoder(_Event)

# Which kind of speech an event continues, and in which field its `.done` repeats all of it.
_SPEECH: dict[str, tuple[Speaker, Literal["text", "refusal"]]] = {
    "response.output_text": (TextPiece, "text"),
    "response.refusal": (RefusalPiece, "refusal"),
    "response.reasoning_text": (ReasoningPiece, "text"),
    "response.reasoning_summary_text": (SummaryPiece, "text"),
}
_ARGUMENTS: dict[str, Literal["arguments", "input"]] = {
    "response.function_call_arguments": "arguments",
    "response.custom_tool_call_input": "input",
}
_STEMS = {
    "output_text": "response.output_text",
    "refusal": "response.refusal",
    "reasoning_text": "response.reasoning_text",
    "summary_text": "response.reasoning_summary_text",
}
_ENDS = {"response.completed", "response.incomplete", "response.failed", "response.cancelled"}


@dataclass
class _Call:
    """A call under way. `custom` ones are free text, which goes on as JSON with one `input`."""

    index: int
    custom: bool
    written: int = 0
    closed: bool = False


class ResponsesStream:
    """One answer under way. `logprobs` is how many likely tokens were asked for beside each, if any were."""

    def __init__(
        self, *, model: str, logprobs: int | None = None, mint: Callable[[], str] = lambda: new_id("call_")
    ) -> None:
        self._model = model
        self._logprobs = logprobs
        self._mint = mint
        self._calls: dict[int, _Call] = {}
        self._spoken: dict[tuple[str, int, int], int] = {}
        self._end: Finished | None = None

    @property
    def done(self) -> bool:
        return self._end is not None

    def read(self, event: ServerEvent) -> Iterator[Piece]:
        """The pieces of one event; `ModelFault` where it is an error, or nothing that we know."""
        if event.data.strip() == b"[DONE]":
            return
        try:
            kind = _kind.decode(event.data)
            name = kind.type or event.name
            failed = name == "error" or (kind.error and not name)
            read = None if failed or not _matters(name) else _decoder.decode(event.data)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise upstream_errors.garbled() from error
        if failed:
            raise upstream_errors.broke_off(upstream_errors.read_body(event.data), model=self._model)
        if read is not None:
            yield from self._event(name, read)

    def close(self) -> Iterator[Piece]:
        """The end; `ModelFault` where the answer never came to one."""
        if self._end is None:
            raise upstream_errors.cut_off()
        yield self._end

    def _event(self, name: str, event: _Event) -> Iterator[Piece]:
        stem, _, step = name.rpartition(".")
        if stem in _SPEECH:
            yield from self._speech(stem, step, event)
        elif stem in _ARGUMENTS:
            yield from self._arguments(stem, step, event)
        elif stem == "response.output_item" and event.item is not None:
            yield from self._item(event.output_index, event.item, whole=step == "done")
        elif name in _ENDS:
            self._finish(name, event.response or {})

    # ── speech ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _speech(self, stem: str, step: str, event: _Event) -> Iterator[Piece]:
        piece, repeated = _SPEECH[stem]
        part = event.summary_index if piece is SummaryPiece else event.content_index
        if step == "delta":
            yield from self._say(stem, event.output_index, part, event.delta or "", event.logprobs)
        elif step == "done":
            yield from self._say_rest(stem, event.output_index, part, getattr(event, repeated))

    def _say(self, stem: str, index: int, part: int, text: str, logprobs: object = None) -> Iterator[Piece]:
        told = read_logprobs(logprobs, self._logprobs)
        if not (text or told):
            return
        piece, _ = _SPEECH[stem]
        place = (stem, index, part)
        if place not in self._spoken and piece is SummaryPiece and part:
            yield SummaryPiece("\n\n")  # several summaries of one thought are one text here
        self._spoken[place] = self._spoken.get(place, 0) + len(text)
        yield TextPiece(text, told) if piece is TextPiece else piece(text)

    def _say_rest(self, stem: str, index: int, part: int, whole: object) -> Iterator[Piece]:
        if isinstance(whole, str):
            yield from self._say(stem, index, part, whole[self._spoken.get((stem, index, part), 0) :])

    # ── calls and whole items ────────────────────────────────────────────────────────────────────────────────────────

    def _item(self, index: int, item: Raw, *, whole: bool) -> Iterator[Piece]:
        kind = item.get("type")
        if kind in _CALLS:
            yield from self._call(index, item, custom=kind == "custom_tool_call", whole=whole)
        elif whole and kind in ("message", "reasoning"):
            for stem, part, text in _parts(item):
                yield from self._say_rest(stem, index, part, text)
            if isinstance(item.get("encrypted_content"), str):
                yield EncryptedReasoning(item["encrypted_content"])

    def _call(self, index: int, item: Raw, *, custom: bool, whole: bool) -> Iterator[Piece]:
        call = self._calls.get(index)
        if call is None:
            call = self._calls[index] = _Call(len(self._calls), custom)
            call_id = str(item.get("call_id") or item.get("id") or self._mint())
            yield CallPiece(call.index, str(item.get("name") or ""), call_id, '{"input":"' if custom else "")
        if whole:
            yield from self._rest(call, str(item.get("input" if custom else "arguments") or ""))

    def _arguments(self, stem: str, step: str, event: _Event) -> Iterator[Piece]:
        call = self._calls.get(event.output_index)
        if call is None:
            raise upstream_errors.garbled()
        if step == "delta":
            yield from self._write(call, event.delta or "")
        else:
            yield from self._rest(call, getattr(event, _ARGUMENTS[stem]) or "")

    def _write(self, call: _Call, text: str) -> Iterator[Piece]:
        call.written += len(text)
        if text:
            yield CallPiece(call.index, arguments=json.dumps(text, ensure_ascii=False)[1:-1] if call.custom else text)

    def _rest(self, call: _Call, text: str) -> Iterator[Piece]:
        yield from self._write(call, text[call.written :])
        if call.custom and not call.closed:
            yield CallPiece(call.index, arguments='"}')
        call.closed = True

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _finish(self, name: str, response: Raw) -> None:
        if name in ("response.failed", "response.cancelled"):
            raise upstream_errors.broke_off(upstream_errors.read_error(response.get("error")), model=self._model)
        usage = _usage(response.get("usage"))
        if name == "response.incomplete":
            filtered = _reason(response.get("incomplete_details")) == "content_filter"
            self._end = Finished("content_filter" if filtered else "length", usage)
        else:
            self._end = Finished("calls" if self._calls else "stop", usage)


def _parts(item: Raw) -> Iterator[tuple[str, int, object]]:
    """What a whole message or reasoning says: which kind of speech, at which place, and the text."""
    for where in ("summary", "content"):
        parts = item.get(where)
        for at, part in enumerate(cast("list[Any]", parts) if isinstance(parts, list) else []):
            if isinstance(part, dict) and (stem := _STEMS.get(cast("Raw", part).get("type", ""))):
                yield stem, at, cast("Raw", part).get(_SPEECH[stem][1])


def _matters(name: str) -> bool:
    stem, _, step = name.rpartition(".")
    if stem == "response.output_item" or stem in _SPEECH or stem in _ARGUMENTS:
        return step in ("delta", "done", "added")
    return name in _ENDS


def _reason(details: object) -> object:
    return cast("Raw", details).get("reason") if isinstance(details, dict) else None


def _usage(given: object) -> Usage:
    try:
        usage = msgspec.convert(given or {}, _Usage)
    except msgspec.ValidationError as error:
        raise upstream_errors.garbled() from error
    read, written = usage.input_tokens or 0, usage.output_tokens or 0
    details = usage.input_tokens_details or _Details()
    cached = InputDetails(details.cached_tokens or 0, details.cache_write_tokens or 0)
    thought = usage.output_tokens_details.reasoning_tokens if usage.output_tokens_details else 0
    return Usage(read, cached, written, OutputDetails(thought or 0), read + written)
