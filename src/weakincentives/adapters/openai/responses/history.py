"""The conversation as the next request repeats it: what we said, what came back untouched, what our tools answered.

Each item is encoded once, when it comes. So a turn costs what is new in it, however long the conversation is; only
the bytes on the wire grow. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import msgspec

from weakincentives.adapters.openai.wire import (
    OUTPUT_SUFFIX,
    REASONING,
    Wire,
    assistant_message,
    call_id_of,
    function_call_output,
    objects_in,
)
from weakincentives.adapters.turn import ClientRunCall, HistoryItem, ModelReply, ToolOutput
from weakincentives.runtime.slices import SliceView


class Replay:
    """All items of a conversation, in order."""

    def __init__(self, opening: Iterable[Wire]) -> None:
        self._items: list[Wire] = []
        self._encoded: list[bytes] = []
        self._seen = 0
        self._answers: dict[str, Callable[[ToolOutput], object]] = {}
        for item in opening:
            self.add(item)

    def add(self, item: Wire) -> None:
        """Say one thing more."""
        self._encoded.append(encode(item))
        self._items.append(item)

    def follow(self, history: SliceView[HistoryItem]) -> None:
        """Take over what is new in the history. A request that is tried again brings nothing new."""
        for happened in history.since(self._seen):
            if isinstance(happened, ModelReply):
                self._take(happened)
            else:
                answer = self._answers.pop(happened.call_id, _plain_answer)
                self.add(answer(happened))  # pyright: ignore[reportArgumentType] - our own reading made it
            self._seen += 1

    def _take(self, reply: ModelReply) -> None:
        for item in reply.items:
            self.add(item)  # pyright: ignore[reportArgumentType] - our own reading made it
        self._answers |= {call.call_id: call.format_output for call in reply.calls if isinstance(call, ClientRunCall)}

    def body(self, head: bytes) -> bytes:
        """A request: `head` is the JSON object of everything but the input."""
        return b"".join((head[:-1], b',"input":[', b",".join(self._encoded), b"]}"))

    def scrub(self, container_id: str) -> int:
        """Retell in words every call that ran in a container which is gone, and say how many there were.

        A provider that is shown the id of a dead container refuses the whole conversation. What the model
        thought right before such a call goes too: reasoning must be followed by what it led to.
        """
        kept: list[Wire] = []
        gone: set[str] = set()
        lost = 0
        for item in self._items:
            if _is_of(container_id, item):
                while kept and kept[-1].get("type") == REASONING:
                    kept.pop()
                gone.add(call_id_of(item))
                lost += 1
                kept.append(assistant_message(_retold(item)))
            elif item.get("call_id") in gone and str(item.get("type")).endswith(OUTPUT_SUFFIX):
                kept.append(assistant_message(_retold(item)))
            else:
                kept.append(item)
        if lost:
            self._items, self._encoded = kept, [encode(item) for item in kept]
        return lost


def ran_in(container_id: str, response: Wire) -> bool:
    """Whether an answer tells of anything that ran in a container."""
    return any(_is_of(container_id, item) for item in objects_in(response.get("output"), "output"))


def _is_of(container_id: str, item: Wire) -> bool:
    return container_id in (item.get("container_id"), _environment(item))


def encode(value: object) -> bytes:
    """As JSON. Half of a surrogate pair, which programs do print, has no form there and is written out."""
    try:
        return msgspec.json.encode(value)
    except (UnicodeError, OverflowError):
        return json.dumps(_printable(value), ensure_ascii=False, separators=(",", ":")).encode()


def _printable(value: object) -> object:
    match value:
        case str():
            return value.encode(errors="backslashreplace").decode()
        case dict():
            return {_printable(key): _printable(inner) for key, inner in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - any JSON
        case list():
            return [_printable(inner) for inner in value]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - any JSON
        case _:
            return value


def _plain_answer(output: ToolOutput) -> Wire:
    return function_call_output(output.call_id, output.text)


def _environment(item: Wire) -> object:
    environment = item.get("environment")
    return environment.get("container_id") if isinstance(environment, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - any JSON


def _retold(item: Wire) -> str:
    told = {key: value for key, value in item.items() if key not in ("id", "container_id", "environment") and value}
    return f"(Earlier, in a container that is gone: {encode(_without_data(told)).decode()})"


def _without_data(value: object) -> object:
    """Images are no words."""
    match value:
        case str():
            return "(data)" if value.startswith("data:") else value
        case dict():
            return {key: _without_data(inner) for key, inner in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - any JSON
        case list():
            return [_without_data(inner) for inner in value]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - any JSON
        case _:
            return value
