"""Converts the messages of a chat completion request to input items. Pure.

An assistant message becomes its reasoning, its hosted items, its text and its calls. Calls in the deprecated form
`function_call` have no ids, so they get some. Ids that are longer than those of the Responses API are replaced by their
digests: they only pair calls with outputs.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from typing import Any, TypeAlias

from antwort.api.errors import ApiError, invalid, unsupported_value
from antwort.api.ids import MAX_ID_LENGTH
from antwort.http.wires.chat_completions.params import Place
from antwort.http.wires.chat_completions.request import (
    ChatAssistantMessage,
    ChatAudio,
    ChatCustomCall,
    ChatDeveloperMessage,
    ChatFile,
    ChatFileContent,
    ChatFunctionCall,
    ChatFunctionMessage,
    ChatImage,
    ChatImageUrl,
    ChatInstruction,
    ChatMessage,
    ChatRefusal,
    ChatSystemMessage,
    ChatText,
    ChatToolMessage,
    ChatUserMessage,
)

Raw: TypeAlias = dict[str, Any]
MAX_ITEMS = 8192
HOSTED_ITEM_TYPES = (
    "code_interpreter_call",
    "file_search_call",
    "mcp_call",
    "mcp_list_tools",
    "shell_call",
    "shell_call_output",
    "web_search_call",
)
"""The types of `antwort:items`. The other items have forms of their own in chat completions."""


def to_items(messages: Sequence[ChatMessage]) -> tuple[list[Raw], list[Place]]:
    """The items of the messages, and the place of each; `ApiError` 400 for what cannot be converted."""
    reader = _MessageReader()
    for at, message in enumerate(messages):
        reader.add(message, f"messages[{at}]")
    return reader.items, reader.places


class _MessageReader:
    """Reads messages in order. Outputs need a call before them."""

    def __init__(self) -> None:
        self.items: list[Raw] = []
        self.places: list[Place] = []
        self._custom_ids: dict[str, bool] = {}
        """The ids of the calls so far, and whether each is that of a custom tool."""
        self._unanswered: dict[str, list[str]] = {}
        """The ids of calls in the deprecated form, by the name of the function."""

    def add(self, message: ChatMessage, path: str) -> None:
        """Add the items of a message."""
        match message:
            case ChatSystemMessage():
                self._add_message("system", message.content, path)
            case ChatDeveloperMessage():
                self._add_message("developer", message.content, path)
            case ChatUserMessage():
                self._add_message("user", message.content, path)
            case ChatAssistantMessage():
                self._add_assistant(message, path)
            case ChatToolMessage():
                self._add_output(message, path)
            case ChatFunctionMessage():
                self._add_function_output(message, path)

    def _append(self, item: Raw, place: Place) -> None:
        if len(self.items) >= MAX_ITEMS:
            message = f"Invalid 'messages': they have more than {MAX_ITEMS} messages, tool calls and outputs together."
            raise invalid(message, param="messages", code="array_above_max_length")
        self.items.append(item)
        self.places.append(place)

    def _add_message(self, role: str, content: str | Sequence[object], path: str) -> None:
        read = content if isinstance(content, str) else _input_parts(content, path)
        self._append({"type": "message", "role": role, "content": read}, Place(path, "message"))

    def _add_assistant(self, message: ChatAssistantMessage, path: str) -> None:
        reasoning = message.reasoning_content or message.reasoning
        if isinstance(reasoning, str) and reasoning:
            content = [{"type": "reasoning_text", "text": reasoning}]
            self._append({"type": "reasoning", "summary": [], "content": content}, Place(path))
        for at, item in enumerate(message.hosted_items or ()):
            place = Place(f"{path}.antwort:items[{at}]")
            if (kind := item.get("type")) not in HOSTED_ITEM_TYPES:
                raise unsupported_value(str(kind), HOSTED_ITEM_TYPES, f"{place.path}.type")
            self._append(item, place)
        if content := _assistant_content(message):
            self._append({"type": "message", "role": "assistant", "content": content}, Place(path, "message"))
        for at, call in enumerate(message.tool_calls or ()):
            self._add_call(call, f"{path}.tool_calls[{at}]")
        if (called := message.function_call) is not None:
            identifier = f"call_{len(self.items)}_{called.name}"
            self._unanswered.setdefault(called.name, []).append(identifier)
            self._add_call(ChatFunctionCall(identifier, called), path)

    def _add_call(self, call: ChatFunctionCall | ChatCustomCall, path: str) -> None:
        call_id = _call_id(call.id)
        self._custom_ids[call_id] = not isinstance(call, ChatFunctionCall)
        if isinstance(call, ChatFunctionCall):
            fields: Raw = {"name": call.function.name, "arguments": call.function.arguments}
            self._append({"type": "function_call", "call_id": call_id, **fields}, Place(path, "call"))
        else:
            fields = {"name": call.custom.name, "input": call.custom.input}
            self._append({"type": "custom_tool_call", "call_id": call_id, **fields}, Place(path, "custom_call"))

    def _add_output(self, message: ChatToolMessage, path: str) -> None:
        call_id = _call_id(message.tool_call_id)
        is_custom = self._custom_ids.get(call_id)
        if is_custom is None:
            raise _without_call(f"no 'tool_calls' before it has the id '{message.tool_call_id[:100]}'", path)
        kind = "custom_tool_call_output" if is_custom else "function_call_output"
        output = message.content if isinstance(message.content, str) else _input_parts(message.content, path)
        self._append({"type": kind, "call_id": call_id, "output": output}, Place(path, "output"))

    def _add_function_output(self, message: ChatFunctionMessage, path: str) -> None:
        waiting = self._unanswered.get(message.name)
        if not waiting:
            raise _without_call(f"no 'function_call' before it calls '{message.name[:100]}'", path, "name")
        call_id = _call_id(waiting.pop(0))
        output = {"type": "function_call_output", "call_id": call_id, "output": message.content or ""}
        self._append(output, Place(path, "output"))


def _without_call(reason: str, path: str, field: str = "tool_call_id") -> ApiError:
    param = f"{path}.{field}"
    return invalid(f"Invalid '{param}': the message is the output of a tool call, but {reason}.", param=param)


def _call_id(given: str) -> str:
    if len(given) <= MAX_ID_LENGTH:
        return given
    return f"call_{hashlib.sha256(given.encode()).hexdigest()[:32]}"


# ── content ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _assistant_content(message: ChatAssistantMessage) -> str | list[Raw]:
    """The text and the refusal of an assistant message; empty if it has none."""
    content = message.content
    if isinstance(content, str) and not message.refusal:
        return content
    parts = [ChatText(content)] if isinstance(content, str) and content else []
    parts = [*(content if isinstance(content, list) else parts)]
    if message.refusal:
        parts.append(ChatRefusal(message.refusal))
    return [
        {"type": "output_text", "text": part.text}
        if isinstance(part, ChatText)
        else {"type": "refusal", "refusal": part.refusal}
        for part in parts
    ]


def _input_parts(parts: Sequence[object], path: str) -> list[Raw]:
    return [_input_part(part, f"{path}.content[{at}]") for at, part in enumerate(parts)]


def _input_part(part: object, path: str) -> Raw:
    match part:
        case ChatText() | ChatInstruction():
            return {"type": "input_text", "text": part.text}
        case ChatImage():
            return _image(part, path)
        case ChatFile():
            return {"type": "input_file", **_file(part.file, path)}
        case _:
            assert isinstance(part, ChatAudio)  # noqa: S101 - the structs have no other part
            message = "Audio input is not supported: no model of this server reads it. Send its transcript as text."
            raise invalid(message, param=f"{path}.type", code="unsupported_value")


def _image(part: ChatImage, path: str) -> Raw:
    given = part.image_url
    image = given if isinstance(given, ChatImageUrl) else ChatImageUrl(given)
    if image.url.startswith("data:") and not _is_image_data(image.url):
        param = f"{path}.image_url.url" if isinstance(given, ChatImageUrl) else f"{path}.image_url"
        message = "expected a data URL of an image with base64, such as 'data:image/png;base64,…'"
        raise invalid(f"Invalid '{param}': {message}.", param=param)
    detail = {} if image.detail is None else {"detail": image.detail}
    return {"type": "input_image", "image_url": image.url, **detail}


def _is_image_data(url: str) -> bool:
    head, _, payload = url.partition(",")
    if not (payload and head.startswith("data:image/") and head.endswith(";base64")):
        return False
    try:
        return bool(base64.b64decode(payload, validate=True))
    except (binascii.Error, ValueError):
        return False


def _file(file: ChatFileContent, path: str) -> Raw:
    if file.file_id is None and file.file_data is None:
        message = f"Missing required parameter: '{path}.file.file_id' or '{path}.file.file_data'."
        raise invalid(message, param=f"{path}.file", code="missing_required_parameter")
    given = {"file_id": file.file_id, "file_data": file.file_data, "filename": file.filename}
    return {name: value for name, value in given.items() if value is not None}
