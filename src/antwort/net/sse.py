"""Server-sent events (SSE): an incremental reader with a size limit, the frame writer and the keep-alive comment. Pure.

The reader accepts every line ending of the standard (LF, CRLF, CR) and ignores comments and unknown fields. The writer
never sends `id:` lines: together with keep-alive comments they break the decoder of OpenAI's SDK.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from antwort.net.errors import EventTooLong

KEEP_ALIVE = b": keep-alive\n\n"
"""A comment that readers ignore; sent so that proxies do not close a silent stream."""

_LINE_END = re.compile(rb"\r\n|\r|\n")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_EVENT, _DATA, _END = b"event: ", b"\ndata: ", b"\n\n"


class ServerEvent(NamedTuple):
    """One event: its name, which is often empty, and its data."""

    name: str
    data: bytes


def encode_frame(name: str, data: bytes) -> bytes:
    """One event as bytes. `data` must have no line breaks; JSON has none outside strings and escapes those inside."""
    return _EVENT + name.encode() + _DATA + data + _END


def decode_frame(frame: bytes) -> ServerEvent:
    """The event of one frame that `encode_frame` wrote."""
    name, _, data = frame.removeprefix(_EVENT).partition(_DATA)
    return ServerEvent(name.decode(), data.removesuffix(_END))


class EventReader:
    """Incremental parser: takes bytes that are split anywhere and returns the events they complete.

    Raises `EventTooLong` when one event exceeds `limit` bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._partial = bytearray()  # the last line, still without its end
        self._name = ""
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False
        self._is_first_line = True

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """The events that end in this chunk."""
        if not chunk:
            return []
        start = 1 if self._after_cr and chunk.startswith(b"\n") else 0
        self._after_cr = chunk.endswith(b"\r")
        events: list[ServerEvent] = []
        for end in _LINE_END.finditer(chunk, start):
            line = chunk[start : end.start()]
            start = end.end()
            self._check_size(len(line))
            if self._partial:
                line, self._partial = bytes(self._partial + line), bytearray()
            if (event := self._end_line(line)) is not None:
                events.append(event)
        self._check_size(len(chunk) - start)
        self._partial += chunk[start:]
        return events

    def close(self) -> list[ServerEvent]:
        """The last event of a server that closes the connection without the final line breaks."""
        event = self._end_line(bytes(self._partial)) if self._partial else None
        last = event or self._end_event()
        return [last] if last is not None else []

    def _check_size(self, added: int) -> None:
        if len(self._partial) + added + self._size > self._limit:
            raise EventTooLong(f"a server-sent event exceeds {self._limit} bytes")

    def _end_line(self, line: bytes) -> ServerEvent | None:
        if self._is_first_line:
            self._is_first_line = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line:
            return self._end_event()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._size += len(value) + 1  # an empty line uses memory too
        elif field == b"event":
            self._name = value.decode(errors="replace")
        return None

    def _end_event(self) -> ServerEvent | None:
        event = ServerEvent(self._name, b"\n".join(self._data)) if self._data else None
        self._name, self._data, self._size = "", [], 0
        return event
