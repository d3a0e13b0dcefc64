"""The history as the messages of a chat. Pure.

Chat servers are strict where the Responses API is not: each call sits in an
assistant's message, and its result follows at once. So results are looked up by
`call_id` and put behind the message with their calls, wherever they stand in the history.
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
from antwort.models.replay_hosted_calls import NOT_KEPT, Retold, retell_call, retell_output

ChatMessage: TypeAlias = dict[str, Any]
Content: TypeAlias = str | Sequence[Part]
_TEXT_TYPES = ("text/", "application/json", "application/xml", "application/yaml", "application/x-yaml")


class ChatDialect(Struct, frozen=True, kw_only=True):
    """Where chat servers differ. The defaults are what the most of them take."""

    developer_role: Literal["system", "developer"] = "system"
    """How instructions and developers' messages are signed; only OpenAI's own models know `developer`."""
    replay_reasoning: Literal["drop", "reasoning_content", "reasoning"] = "drop"
    """In which field earlier reasoning is sent back, where the model wants it back at all."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    images: bool = True
    """Whether pictures are sent; else the model reads that there was one."""
    files: bool = False
    """Whether files are sent that are no text; else the model reads that there was one."""
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    """Sent with every request, unless the request says otherwise: `chat_template_kwargs`, `top_k` and the like."""


def to_messages(items: Sequence[Item], instructions: str | None, dialect: ChatDialect) -> list[ChatMessage]:
    """The whole history, the instructions first."""
    writer = _Writer(dialect, items)
    if instructions:
        writer.say("developer", instructions)
    for item in items:
        writer.add(item)
    return writer.close()


class _Writer:
    """The messages so far, and the assistant's message that calls may still join."""

    def __init__(self, dialect: ChatDialect, items: Sequence[Item]) -> None:
        self._dialect = dialect
        self._messages: list[ChatMessage] = []
        self._assistant: ChatMessage | None = None
        self._due: list[str] = []
        self._thoughts: list[str] = []
        self._outputs = _outputs(items)
        self._called = {call.call_id for item in items if (call := _call(item)) is not None}

    def add(self, item: Item) -> None:
        known = item.known
        if isinstance(known, GivenMessage):
            self.say(known.role, known.content)
        elif isinstance(known, GivenReasoning):
            self._thoughts.append(_thought(known))
        elif (call := _call(item)) is not None:
            self._call(call)
        elif (answered := _answered(item)) is not None:
            self._settle()
            if answered not in self._called:
                self._orphan(answered)

    def say(self, role: str, content: Content) -> None:
        self._settle()
        if role == "assistant":
            self._speak(_plain(content))
        elif role == "user":
            self._messages.append({"role": "user", "content": _user_content(content, self._dialect)})
        else:
            self._instruct(_plain(content))

    def close(self) -> list[ChatMessage]:
        self._settle()
        return self._messages

    def _speak(self, text: str) -> ChatMessage:
        self._assistant = {"role": "assistant", "content": text}
        self._messages.append(self._assistant)
        if self._dialect.replay_reasoning != "drop" and any(self._thoughts):
            self._assistant[self._dialect.replay_reasoning] = "\n\n".join(filter(None, self._thoughts))
        self._thoughts = []
        return self._assistant

    def _instruct(self, text: str) -> None:
        """Instructions at the start are one message: many templates take no more, and only there."""
        role = self._dialect.developer_role
        if len(self._messages) == 1 and self._messages[0]["role"] == role:
            self._messages[0]["content"] += f"\n\n{text}"
        else:
            self._messages.append({"role": role, "content": text})

    def _call(self, call: Retold) -> None:
        if call.output is not None:
            self._settle()
        message = self._assistant or self._speak("")
        function = {"name": call.name, "arguments": _as_object(call.arguments or "{}")}
        message.setdefault("tool_calls", []).append({"id": call.call_id, "type": "function", "function": function})
        self._due.append(call.call_id)
        if call.output is not None:
            self._outputs.setdefault(call.call_id, deque()).appendleft(call.output)
            self._settle()

    def _settle(self) -> None:
        """Put the results behind the message with their calls, and end it."""
        shown: list[ChatMessage] = []
        for call_id in self._due:
            waiting = self._outputs.get(call_id)
            content = waiting.popleft() if waiting else NOT_KEPT
            shown += _shown(content, self._dialect)
            self._messages.append({"role": "tool", "tool_call_id": call_id, "content": _plain(content)})
        # A tool's message holds text only; its pictures and files come as if the user showed them.
        if shown:
            self._messages.append({"role": "user", "content": [_text_part("From the tools:"), *shown]})
        self._due, self._assistant = [], None

    def _orphan(self, call_id: str) -> None:
        """A result whose call is gone, as truncation leaves it: a tool's message alone would be refused."""
        content = self._outputs[call_id].popleft()
        text = f"Result of an earlier tool call:\n{_plain(content)}"
        self._messages.append({"role": "user", "content": text})


# ── calls and their results ──────────────────────────────────────────────────────────────────────────────────────────


def _call(item: Item) -> Retold | None:
    known = item.known
    if isinstance(known, GivenFunctionCall):
        return Retold(known.call_id, known.name, known.arguments)
    if isinstance(known, GivenCustomToolCall):
        return Retold(known.call_id, known.name, msgspec.json.encode({"input": known.input}).decode())
    return retell_call(item)


def _as_object(arguments: str) -> str:
    """Many servers read old arguments again, for their templates: one slip of a model would end its conversation."""
    try:
        msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return json.dumps({"not_json": arguments})
    return arguments


def _answered(item: Item) -> str | None:
    """The call that an item is the result of."""
    if isinstance(item.known, (FunctionCallOutput, CustomToolCallOutput)):
        return item.known.call_id
    if retell_output(item) is None:
        return None
    return str(item.raw.get("call_id") or item.raw.get("id") or "")


def _outputs(items: Iterable[Item]) -> dict[str, deque[Content]]:
    """Results by call, in order: an id may come twice, where a server counts its calls from zero each time."""
    found: dict[str, deque[Content]] = {}
    for item in items:
        call_id = _answered(item)
        if call_id is not None:
            known = item.known
            told = known.output if isinstance(known, (FunctionCallOutput, CustomToolCallOutput)) else None
            found.setdefault(call_id, deque()).append(told if told is not None else retell_output(item) or "")
    return found


def _thought(reasoning: GivenReasoning) -> str:
    return "\n".join(part.text for part in reasoning.content or reasoning.summary)


# ── content ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _plain(content: Content) -> str:
    """Text alone; pictures and files are mentioned."""
    return content if isinstance(content, str) else "\n".join(map(_mention, content))


def _mention(part: Part) -> str:
    if isinstance(part, InputImage):
        return "[image]"
    if isinstance(part, InputFile):
        return _file(part)
    return part.refusal if isinstance(part, Refusal) else part.text


def _user_content(content: Content, dialect: ChatDialect) -> str | list[ChatMessage]:
    if isinstance(content, str) or not _shown(content, dialect):
        return _plain(content)
    return [_show(part, dialect) or _text_part(_mention(part)) for part in content]


def _shown(content: Content, dialect: ChatDialect) -> list[ChatMessage]:
    """What of some content is more than text."""
    parts = () if isinstance(content, str) else content
    return [shown for part in parts if (shown := _show(part, dialect)) is not None]


def _show(part: Part, dialect: ChatDialect) -> ChatMessage | None:
    if isinstance(part, InputImage) and part.image_url and dialect.images:
        return _image(part)
    if isinstance(part, InputFile) and part.file_data and dialect.files and _text_of(part.file_data) is None:
        return {"type": "file", "file": {"filename": part.filename or "file", "file_data": part.file_data}}
    return None


def _image(picture: InputImage) -> ChatMessage:
    address = {"url": picture.image_url}
    if picture.detail in ("low", "high"):
        address["detail"] = picture.detail
    return {"type": "image_url", "image_url": address}


def _text_part(text: str) -> ChatMessage:
    return {"type": "text", "text": text}


def _file(file: InputFile) -> str:
    """A file with text in it is shown; of any other the model learns that it is there."""
    name = file.filename or file.file_id or file.file_url or "file"
    text = _text_of(file.file_data or "")
    return f"[attached file: {name}]" if text is None else f"[attached file: {name}]\n{text}\n[end of {name}]"


def _text_of(data: str) -> str | None:
    """What is in a data URL, where that is text."""
    head, comma, payload = data.partition(",")
    if not comma or not head.removeprefix("data:").startswith(_TEXT_TYPES):
        return None
    try:
        raw = base64.b64decode(payload, validate=True) if head.endswith(";base64") else unquote_to_bytes(payload)
        return raw.decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
