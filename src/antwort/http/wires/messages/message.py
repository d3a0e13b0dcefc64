"""Folds the events of a stream into the message that answers a request without `stream`. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from antwort.http.wires.messages.events import (
    AnswerMessage,
    CitationsDelta,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    Delta,
    InputJsonDelta,
    MessageDelta,
    MessageStart,
    SignatureDelta,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
)


class MessageFold:
    """The message so far."""

    def __init__(self) -> None:
        self.message: AnswerMessage | None = None
        self._block: dict[str, Any] = {}
        self._chunks: list[str] = []
        """Of the open block: its text, its reasoning, or the JSON of its input."""

    def add(self, event: StreamEvent) -> None:
        """Take the next event."""
        match event:
            case MessageStart():
                self.message = msgspec.structs.replace(event.message, content=[])
            case ContentBlockStart():
                self._block, self._chunks = dict(event.content_block), []
            case ContentBlockDelta():
                self._add_delta(event.delta)
            case ContentBlockStop():
                self._end_block()
            case MessageDelta():
                message = self._message()
                message.stop_reason, message.stop_sequence = event.delta.stop_reason, event.delta.stop_sequence
                message.container, message.usage = event.delta.container, event.usage
            case _:
                pass

    def _message(self) -> AnswerMessage:
        assert self.message is not None  # noqa: S101 - a stream begins with `message_start`
        return self.message

    def _add_delta(self, delta: Delta) -> None:
        match delta:
            case TextDelta(text=chunk) | ThinkingDelta(thinking=chunk) | InputJsonDelta(partial_json=chunk):
                self._chunks.append(chunk)
            case SignatureDelta():
                self._block["signature"] = delta.signature
            case CitationsDelta():
                self._block["citations"] = [*(self._block.get("citations") or ()), delta.citation]

    def _end_block(self) -> None:
        written = "".join(self._chunks)
        match self._block["type"]:
            case "text" | "thinking" as name:
                self._block[name] += written
            case _ if written:
                self._block["input"] = _as_object(written)
            case _:
                pass
        self._message().content.append(self._block)


def _as_object(written: str) -> dict[str, Any]:
    """The input of a call. What is no JSON object, because the model wrote something else or was cut off, is kept."""
    try:
        return msgspec.json.decode(written, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return {"not_json": written}
