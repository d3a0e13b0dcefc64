"""`RequestHistory`: the `input` of the next request: prompt, response items unchanged, tool outputs. Pure.

Each item is encoded once, when it is appended. So the cost of a turn depends on its new items, not on the length of the
conversation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import msgspec

from weakincentives.adapters.openai.wire import (
    OUTPUT_SUFFIX,
    REASONING,
    Wire,
    as_objects,
    assistant_message,
    function_call_output,
    get_call_id,
)
from weakincentives.adapters.turn import ClientRunCall, HistoryItem, ModelReply, ToolOutput
from weakincentives.runtime.slices import SliceView

_EXTENSION_PREFIX = "antwort:"


class RequestHistory:
    """All input items of a conversation, in order."""

    def __init__(self, items: Iterable[Wire]) -> None:
        self._items: list[Wire] = []
        self._encoded: list[bytes] = []
        self._seen = 0
        self._answers: dict[str, Callable[[ToolOutput], object]] = {}
        for item in items:
            self.append(item)

    @property
    def items(self) -> list[Wire]:
        """A copy of the list of items."""
        return list(self._items)

    @property
    def size(self) -> int:
        """The bytes of the encoded items."""
        return sum(map(len, self._encoded))

    @property
    def encrypted_size(self) -> int:
        """The bytes of the encoded items with encrypted content, whose length says little about their tokens."""
        pairs = zip(self._items, self._encoded, strict=True)
        return sum(len(encoded) for item, encoded in pairs if item.get("encrypted_content"))

    def append(self, item: Wire) -> None:
        """Append an input item."""
        self._encoded.append(encode_json(item))
        self._items.append(item)

    def append_items(self, items: Iterable[object]) -> None:
        """Append the items of a response, without extension fields: OpenAI refuses them."""
        for item in items:
            fields: Wire = item  # pyright: ignore[reportAssignmentType] - created by `parsing`
            if any(name.startswith(_EXTENSION_PREFIX) for name in fields):
                fields = {name: value for name, value in fields.items() if not name.startswith(_EXTENSION_PREFIX)}
            self.append(fields)

    def replace(self, items: Iterable[Wire]) -> None:
        """Replace all items, as a compaction does. Outputs of calls that are still open are appended as before."""
        self._items = list(items)
        self._encoded = [encode_json(item) for item in self._items]

    def append_new(self, history: SliceView[HistoryItem]) -> None:
        """Append the items that were added since the last call. A retried request adds none."""
        for event in history.since(self._seen):
            if isinstance(event, ModelReply):
                self._append_reply(event)
            else:
                answer = self._answers.pop(event.call_id, _function_output)
                self.append(answer(event))  # pyright: ignore[reportArgumentType] - created by `parsing`
            self._seen += 1

    def _append_reply(self, reply: ModelReply) -> None:
        self.append_items(reply.items)
        self._answers |= {call.call_id: call.format_output for call in reply.calls if isinstance(call, ClientRunCall)}

    def body(self, head: bytes) -> bytes:
        """The body of a request: `head` is the JSON object without the input."""
        return b"".join((head[:-1], b',"input":[', b",".join(self._encoded), b"]}"))

    def scrub_container(self, container_id: str) -> int:
        """Rewrite every call that ran in an expired container as text; return their number.

        A provider rejects a conversation that contains the id of an expired container. Reasoning right before such a
        call is removed, because a reasoning item must be followed by the item that it led to.
        """
        kept: list[Wire] = []
        scrubbed: set[str] = set()
        count = 0
        for item in self._items:
            if _is_in_container(container_id, item):
                while kept and kept[-1].get("type") == REASONING:
                    kept.pop()
                scrubbed.add(get_call_id(item))
                count += 1
                kept.append(assistant_message(_as_text(item)))
            elif item.get("call_id") in scrubbed and str(item.get("type")).endswith(OUTPUT_SUFFIX):
                kept.append(assistant_message(_as_text(item)))
            else:
                kept.append(item)
        if count:
            self.replace(kept)
        return count

    def containers(self) -> set[str]:
        """The ids of the containers in which calls of the history ran."""
        return {known for item in self._items if (known := _container_of(item)) is not None}


def has_calls_in(container_id: str, response: Wire) -> bool:
    """Whether a response has calls that ran in this container."""
    return any(_is_in_container(container_id, item) for item in as_objects(response.get("output"), "output"))


def encode_json(value: object) -> bytes:
    """Encode JSON. A lone surrogate, which programs do print, has no JSON form and is escaped with a backslash."""
    try:
        return msgspec.json.encode(value)
    except (UnicodeError, OverflowError):
        escaped = _map_strings(value, lambda text: text.encode(errors="backslashreplace").decode())
        return json.dumps(escaped, ensure_ascii=False, separators=(",", ":")).encode()


def _map_strings(value: object, change: Callable[[str], str]) -> object:
    """Copy a JSON value with all strings changed."""
    match value:
        case str():
            return change(value)
        case dict():
            return {_map_strings(key, change): _map_strings(inner, change) for key, inner in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - any JSON
        case list():
            return [_map_strings(inner, change) for inner in value]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - any JSON
        case _:
            return value


def _function_output(output: ToolOutput) -> Wire:
    return function_call_output(output.call_id, output.text)


def _is_in_container(container_id: str, item: Wire) -> bool:
    return container_id == _container_of(item)


def _container_of(item: Wire) -> str | None:
    environment = item.get("environment")
    shell = environment.get("container_id") if isinstance(environment, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - any JSON
    known = item.get("container_id") or shell  # pyright: ignore[reportUnknownVariableType] - any JSON
    return known if isinstance(known, str) else None


def _as_text(item: Wire) -> str:
    """The item as JSON text, without ids and without the data of images."""
    fields = {key: value for key, value in item.items() if key not in ("id", "container_id", "environment") and value}
    plain = _map_strings(fields, lambda text: "(data)" if text.startswith("data:") else text)
    return f"(Earlier, in a container that is gone: {encode_json(plain).decode()})"
