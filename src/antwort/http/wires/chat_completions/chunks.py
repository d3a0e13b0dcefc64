"""Writes the events of a response as the frames of a streamed chat completion. Pure.

The first chunk has the role, the last one the finish reason; a chunk with the usage follows if it was requested, and
`[DONE]`. All chunks of a stream begin with the same bytes, so a delta of text costs the encoding of that text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET

from antwort.api import events as wire
from antwort.api.errors import ApiError, ErrorDetail, ErrorEnvelope
from antwort.api.events import AnyEvent
from antwort.api.obfuscation import pad
from antwort.api.projection import ResponseView
from antwort.api.responses import Response
from antwort.http.wires.chat_completions.answer import (
    ChatLogprobs,
    ChatToolCall,
    ChunkDelta,
    WrittenCustom,
    WrittenFunction,
)
from antwort.http.wires.chat_completions.completion import (
    CALL_TYPES,
    OWN_TYPES,
    SEPARATOR,
    citations,
    completion_id,
    finish_reason,
    ignored_tools,
    usage,
)
from antwort.http.wires.chat_completions.reader import ChatRequest

_encode = msgspec.json.Encoder().encode
_END: Final = b"}\n\n"
_DONE: Final = b"data: [DONE]\n\n"

Handler: TypeAlias = Callable[[Any], bytes]


class ChunkWriter:
    """The frames of one stream. An event that changes nothing in a chat completion has an empty frame."""

    def __init__(self, response: Response, chat: ChatRequest, view: ResponseView) -> None:
        self._chat = chat
        self._view = view
        self._is_padded = chat.form.is_obfuscated
        head = {
            "id": completion_id(response),
            "object": "chat.completion.chunk",
            "created": response.created_at,
            "model": response.model,
            "service_tier": response.service_tier,
            "system_fingerprint": None,
        }
        self._head = b"data: " + _encode(head)[:-1]
        self._before_delta = self._head + b',"choices":[{"index":0,"delta":'
        self._usage = b',"usage":null' if chat.form.has_usage else b""
        self._after_delta = b',"logprobs":null,"finish_reason":null}]' + self._usage
        self._has_begun = False
        self._has_content = False
        self._last: dict[str, object] = {}
        """What the last delta of the text, the refusal and the reasoning belongs to."""
        self._calls: dict[int, int] = {}
        """The index of each call among the calls, by its output index."""
        self._hosted = 0
        self._has_failed = False
        self._handlers: dict[type, Handler] = {
            wire.OutputTextDelta: self._text,
            wire.RefusalDelta: self._refusal,
            wire.ReasoningTextDelta: self._reasoning,
            wire.SummaryTextDelta: self._reasoning,
            wire.OutputItemAdded: self._item_added,
            wire.OutputItemDone: self._item_done,
            wire.FunctionArgumentsDelta: self._arguments,
            wire.CustomInputDelta: self._input,
            wire.ResponseCompleted: self._finished,
            wire.ResponseIncomplete: self._finished,
            wire.ErrorEvent: self._error,
        }

    def encode(self, event: AnyEvent) -> bytes:
        """The frames of an event."""
        handler = self._handlers.get(type(event))
        return b"" if handler is None else handler(event)

    def error_frames(self, error: ApiError) -> Iterable[bytes]:
        """The last frame of a stream that fails."""
        if not self._has_failed:
            yield self._failed(error.envelope().error)

    # ── text ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _text(self, event: wire.OutputTextDelta) -> bytes:
        if not event.delta:  # a token may be half a character: it has logprobs only
            return self._begun() + self._with_logprobs(b"{}", event) if self._chat.form.has_logprobs else b""
        begun = b"" if self._has_begun else self._begin(content="")
        self._has_content = True
        delta = b'{"content":' + _encode(self._joined("text", event.output_index, event.delta)) + b"}"
        return begun + (self._with_logprobs(delta, event) if self._chat.form.has_logprobs else self._frame(delta))

    def _with_logprobs(self, delta: bytes, event: wire.OutputTextDelta) -> bytes:
        logprobs = _encode(ChatLogprobs(event.logprobs))
        after = b',"logprobs":' + logprobs + b',"finish_reason":null}]' + self._usage
        return self._frame(delta, after)

    def _refusal(self, event: wire.RefusalDelta) -> bytes:
        text = self._joined("refusal", event.output_index, event.delta)
        return self._begun() + self._frame(b'{"refusal":' + _encode(text) + b"}")

    def _reasoning(self, event: wire.ReasoningTextDelta | wire.SummaryTextDelta) -> bytes:
        part = event.content_index if isinstance(event, wire.ReasoningTextDelta) else ~event.summary_index
        text = self._joined("reasoning", (event.output_index, part), event.delta)
        return self._begun() + self._frame(b'{"reasoning_content":' + _encode(text) + b"}")

    def _joined(self, kind: str, source: object, delta: str) -> str:
        """A delta, behind a blank line if another message or part precedes it."""
        last = self._last.get(kind)
        if last == source:
            return delta
        self._last[kind] = source
        return delta if last is None else SEPARATOR + delta

    # ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _item_added(self, event: wire.OutputItemAdded) -> bytes:
        item = event.item
        if item["type"] not in CALL_TYPES:
            return b""
        index = self._calls[event.output_index] = len(self._calls)
        if self._chat.form.has_functions:
            delta = ChunkDelta(function_call=WrittenFunction(item["name"], ""))
        elif item["type"] == "custom_tool_call":
            custom = WrittenCustom(item["name"], "")
            delta = ChunkDelta(tool_calls=[ChatToolCall(index, item["call_id"], "custom", custom=custom)])
        else:
            function = WrittenFunction(item["name"], "")
            delta = ChunkDelta(tool_calls=[ChatToolCall(index, item["call_id"], "function", function)])
        return self._begun() + self._frame(_encode(delta))

    def _arguments(self, event: wire.FunctionArgumentsDelta) -> bytes:
        text = _encode(event.delta)
        if self._chat.form.has_functions:
            return self._frame(b'{"function_call":{"arguments":' + text + b"}}")
        index = self._calls[event.output_index]
        return self._frame(b'{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]}' % (index, text))

    def _input(self, event: wire.CustomInputDelta) -> bytes:
        index, text = self._calls[event.output_index], _encode(event.delta)
        return self._frame(b'{"tool_calls":[{"index":%d,"custom":{"input":%b}}]}' % (index, text))

    def _item_done(self, event: wire.OutputItemDone) -> bytes:
        """The item of a hosted call."""
        if event.item["type"] in OWN_TYPES or not self._chat.form.has_hosted_tools:
            return b""
        item = {"index": self._hosted, **self._view.item(event.item)}
        self._hosted += 1
        return self._begun() + self._frame(_encode(ChunkDelta(hosted_items=[item])))

    # ── begin and end ────────────────────────────────────────────────────────────────────────────────────────────────

    def _begun(self) -> bytes:
        return b"" if self._has_begun else self._begin(content=None)

    def _begin(self, content: str | None) -> bytes:
        self._has_begun = True
        return self._frame(_encode(ChunkDelta(role="assistant", content=content, refusal=None)))

    def _finished(self, event: wire.ResponseCompleted | wire.ResponseIncomplete) -> bytes:
        response = event.response
        frames = [] if self._has_begun else [self._begin(content="")]
        if not (self._has_content or self._calls or "refusal" in self._last):
            frames.append(self._frame(b'{"content":""}'))
        if cited := citations(response.output):
            frames.append(self._frame(_encode(ChunkDelta(annotations=cited))))
        reason = _encode(finish_reason(response, self._chat.form))
        ignored = ignored_tools(response, self._chat)
        more = b"" if ignored is UNSET else b',"antwort:ignored_tools":' + _encode(ignored)
        frames.append(self._frame(b"{}", b',"logprobs":null,"finish_reason":' + reason + b"}]" + self._usage + more))
        if self._chat.form.has_usage:
            frames.append(self._head + b',"choices":[],"usage":' + _encode(usage(response.usage)) + _END)
        return b"".join([*frames, _DONE])

    def _error(self, event: wire.ErrorEvent) -> bytes:
        return self._failed(event.error)

    def _failed(self, error: ErrorDetail) -> bytes:
        self._has_failed = True
        return b"data: " + _encode(ErrorEnvelope(error=error)) + b"\n\n"

    def _frame(self, delta: bytes, after: bytes | None = None) -> bytes:
        frame = self._before_delta + delta + (after or self._after_delta)
        return (pad(frame) if self._is_padded else frame) + _END
