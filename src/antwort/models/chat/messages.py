"""Converts the history to chat completions messages. Pure.

Chat servers are stricter than the Responses API: each call is in an assistant message, and its output follows
immediately. So outputs are looked up by `call_id` and placed after the message with their calls, wherever they are in
the history.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Struct, field

from antwort.api.items import (
    CustomToolCallOutput,
    FunctionCallOutput,
    GivenCustomToolCall,
    GivenFunctionCall,
    GivenMessage,
    GivenReasoning,
    InputFile,
    InputImage,
    Item,
    Part,
    Refusal,
)
from antwort.models.replay_hosted_calls import (
    OUTPUT_NOT_STORED,
    ReplayedCall,
    replay_call,
    replay_message,
    replay_output,
)

ChatMessage: TypeAlias = dict[str, Any]
Content: TypeAlias = str | Sequence[Part]
_TEXT_TYPES = ("text/", "application/json", "application/xml", "application/yaml", "application/x-yaml")


class ChatDialect(Struct, frozen=True, kw_only=True):
    """Differences between chat servers. The defaults work with most of them."""

    developer_role: Literal["system", "developer"] = "system"
    """The role of instructions and developer messages; only OpenAI's own models accept `developer`."""
    replay_reasoning: Literal["drop", "reasoning_content", "reasoning"] = "drop"
    """The message field in which earlier reasoning is sent back, if at all."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    files: bool = False
    """Whether binary files are sent; otherwise a placeholder text."""
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    """Extra body fields, such as `chat_template_kwargs` or `top_k`. Fields of the request take precedence."""


def to_messages(items: Sequence[Item], instructions: str | None, dialect: ChatDialect) -> list[ChatMessage]:
    """The messages of a history, instructions first. Stored items that could not be parsed are left out."""
    items = [item for item in items if item.known is not None]
    writer = _MessageBuilder(dialect, items)
    if instructions:
        writer.add_message("developer", instructions)
    for item in items:
        writer.add(item)
    return writer.close()


class _MessageBuilder:
    """Builds the messages. `_assistant` is the last assistant message, to which calls can be added."""

    def __init__(self, dialect: ChatDialect, items: Sequence[Item]) -> None:
        self._dialect = dialect
        self._messages: list[ChatMessage] = []
        self._assistant: ChatMessage | None = None
        self._pending_call_ids: list[str] = []
        self._reasoning: list[str] = []
        self._outputs = _outputs_by_call(items)
        self._call_ids = {call.call_id for item in items if (call := _call(item)) is not None}

    def add(self, item: Item) -> None:
        known = item.known
        if isinstance(known, GivenMessage):
            self.add_message(known.role, known.content)
        elif isinstance(known, GivenReasoning):
            self._reasoning.append(known.text)
        elif (call := _call(item)) is not None:
            self._add_call(call)
        elif (call_id := _answered_call_id(item)) is not None:
            self._flush_outputs()
            if call_id not in self._call_ids:
                self._add_orphan_output(call_id)
        elif (text := replay_message(item)) is not None:
            self.add_message("user", text)

    def add_message(self, role: str, content: Content) -> None:
        self._flush_outputs()
        if role == "user":
            self._messages.append({"role": "user", "content": _user_content(content, self._dialect)})
            return
        if role == "assistant":
            self._add_assistant(_content_text(content))
        else:
            self._add_instructions(_content_text(content))
        if media := _media_parts(content, self._dialect):
            self._add_media(f"From the {role} message:", media)
            self._assistant = None

    def close(self) -> list[ChatMessage]:
        self._flush_outputs()
        return self._messages

    def _add_assistant(self, text: str) -> ChatMessage:
        self._assistant = {"role": "assistant", "content": text}
        self._messages.append(self._assistant)
        if self._dialect.replay_reasoning != "drop" and any(self._reasoning):
            self._assistant[self._dialect.replay_reasoning] = "\n\n".join(filter(None, self._reasoning))
        self._reasoning = []
        return self._assistant

    def _add_instructions(self, text: str) -> None:
        """Merges instructions at the start into one message: many templates accept one, and only there."""
        role = self._dialect.developer_role
        if len(self._messages) == 1 and self._messages[0]["role"] == role:
            self._messages[0]["content"] += f"\n\n{text}"
        else:
            self._messages.append({"role": role, "content": text})

    def _add_call(self, call: ReplayedCall) -> None:
        if call.output is not None:
            self._flush_outputs()
        message = self._assistant or self._add_assistant("")
        function = {"name": call.name, "arguments": _as_object(call.arguments or "{}")}
        message.setdefault("tool_calls", []).append({"id": call.call_id, "type": "function", "function": function})
        self._pending_call_ids.append(call.call_id)
        if call.output is not None:
            self._outputs.setdefault(call.call_id, deque()).appendleft(call.output)
            self._flush_outputs()

    def _flush_outputs(self) -> None:
        """Add the outputs of pending calls after the message with the calls, and close that message."""
        media: list[ChatMessage] = []
        for call_id in self._pending_call_ids:
            outputs = self._outputs.get(call_id)
            content = outputs.popleft() if outputs else OUTPUT_NOT_STORED
            media += _media_parts(content, self._dialect)
            self._messages.append({"role": "tool", "tool_call_id": call_id, "content": _content_text(content)})
        if media:
            self._add_media("From the tools:", media)
        self._pending_call_ids, self._assistant = [], None

    def _add_media(self, source: str, media: list[ChatMessage]) -> None:
        """Add images and files of a message of another role, which contains text only, in a user message."""
        self._messages.append({"role": "user", "content": [_text_part(source), *media]})

    def _add_orphan_output(self, call_id: str) -> None:
        """Add an output whose call was truncated away, as user text: servers reject a tool message without its call."""
        content = self._outputs[call_id].popleft()
        text = f"Result of an earlier tool call:\n{_content_text(content)}"
        media = _media_parts(content, self._dialect)
        self._messages.append({"role": "user", "content": [_text_part(text), *media] if media else text})


# ── calls and outputs ─────────────────────────────────────────────────────────────────────────────────────────────────


def _call(item: Item) -> ReplayedCall | None:
    known = item.known
    if isinstance(known, GivenFunctionCall):
        return ReplayedCall(known.call_id, known.name, known.arguments)
    if isinstance(known, GivenCustomToolCall):
        return ReplayedCall(known.call_id, known.name, msgspec.json.encode({"input": known.input}).decode())
    return replay_call(item)


def _as_object(arguments: str) -> str:
    """Wrap invalid JSON: many servers parse the arguments in their template and would reject the whole conversation."""
    try:
        msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return json.dumps({"not_json": arguments})
    return arguments


def _answered_call_id(item: Item) -> str | None:
    """The id of the call that an item is the output of."""
    if isinstance(item.known, (FunctionCallOutput, CustomToolCallOutput)):
        return item.known.call_id
    if replay_output(item) is None:
        return None
    return str(item.raw.get("call_id") or item.raw.get("id") or "")


def _outputs_by_call(items: Iterable[Item]) -> dict[str, deque[Content]]:
    """Outputs by call id, in order; an id may occur twice if the server numbers calls from zero in every answer."""
    found: dict[str, deque[Content]] = {}
    for item in items:
        call_id = _answered_call_id(item)
        if call_id is not None:
            known = item.known
            output = known.output if isinstance(known, (FunctionCallOutput, CustomToolCallOutput)) else None
            found.setdefault(call_id, deque()).append(output if output is not None else replay_output(item) or "")
    return found


# ── content ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _content_text(content: Content) -> str:
    """The content as text, with placeholders for images and files."""
    return content if isinstance(content, str) else "\n".join(map(_part_text, content))


def _part_text(part: Part) -> str:
    if isinstance(part, InputImage):
        return "[image]"
    if isinstance(part, InputFile):
        return _file_text(part)
    return part.refusal if isinstance(part, Refusal) else part.text


def _user_content(content: Content, dialect: ChatDialect) -> str | list[ChatMessage]:
    if isinstance(content, str) or not _media_parts(content, dialect):
        return _content_text(content)
    return [_media_part(part, dialect) or _text_part(_part_text(part)) for part in content]


def _media_parts(content: Content, dialect: ChatDialect) -> list[ChatMessage]:
    """The images and files of a content, as far as the dialect allows them."""
    parts = () if isinstance(content, str) else content
    return [media for part in parts if (media := _media_part(part, dialect)) is not None]


def _media_part(part: Part, dialect: ChatDialect) -> ChatMessage | None:
    if isinstance(part, InputImage) and part.image_url:
        return _image_part(part)
    if isinstance(part, InputFile) and part.file_data and dialect.files and _decode_text(part.file_data) is None:
        return {"type": "file", "file": {"filename": part.filename or "file", "file_data": part.file_data}}
    return None


def _image_part(image: InputImage) -> ChatMessage:
    address = {"url": image.image_url}
    if image.detail in ("low", "high"):
        address["detail"] = image.detail
    return {"type": "image_url", "image_url": address}


def _text_part(text: str) -> ChatMessage:
    return {"type": "text", "text": text}


def _file_text(file: InputFile) -> str:
    """The text of a text file; for another file, a placeholder with its name."""
    name = file.filename or file.file_id or file.file_url or "file"
    text = _decode_text(file.file_data or "")
    return f"[attached file: {name}]" if text is None else f"[attached file: {name}]\n{text}\n[end of {name}]"


def _decode_text(data: str) -> str | None:
    """The text in a data URL; None if it is not text."""
    head, comma, payload = data.partition(",")
    if not comma or not head.removeprefix("data:").startswith(_TEXT_TYPES):
        return None
    try:
        raw = base64.b64decode(payload, validate=True) if head.endswith(";base64") else unquote_to_bytes(payload)
        return raw.decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
