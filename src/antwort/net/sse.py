"""Server-sent events, read from bytes that are cut anywhere. Pure.

Lines end as the standard allows (LF, CRLF, CR), comments and unknown fields are passed
over, and an event that grows past a limit is an error instead of a full memory.
"""

from __future__ import annotations

import re

from msgspec import Struct

_LINE_END = re.compile(rb"\r\n|\r|\n")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class ServerEvent(Struct, frozen=True):
    """One event: its name, mostly empty, and its data."""

    name: str
    data: bytes


class EventTooLong(Exception):
    """One event, or one line, is longer than the limit."""


class EventReader:
    """Feed it bytes as they come; it gives the events that they complete."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._line = bytearray()
        self._name = ""
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False
        self._first = True

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """The events that end in this chunk."""
        if not chunk:
            return []
        start = 1 if self._after_cr and chunk.startswith(b"\n") else 0
        self._after_cr = chunk.endswith(b"\r")
        events: list[ServerEvent] = []
        for end in _LINE_END.finditer(chunk, start):
            self._extend(chunk[start : end.start()])
            if (event := self._end_of_line()) is not None:
                events.append(event)
            start = end.end()
        self._extend(chunk[start:])
        return events

    def close(self) -> list[ServerEvent]:
        """What was left without its last line breaks: some servers just hang up."""
        event = self._end_of_line() if self._line else None
        last = event or self._end_of_event()
        return [last] if last is not None else []

    def _extend(self, part: bytes) -> None:
        self._line += part
        if len(self._line) + self._size > self._limit:
            raise EventTooLong

    def _end_of_line(self) -> ServerEvent | None:
        line = bytes(self._line)
        self._line.clear()
        if self._first:
            self._first = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line:
            return self._end_of_event()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._size += len(value) + 1  # an empty line takes room too
        elif field == b"event":
            self._name = value.decode(errors="replace")
        return None

    def _end_of_event(self) -> ServerEvent | None:
        event = ServerEvent(self._name, b"\n".join(self._data)) if self._data else None
        self._name, self._data, self._size = "", [], 0
        return event
