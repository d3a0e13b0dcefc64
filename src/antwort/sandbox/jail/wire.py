"""Frame codec of the control channel between the server and the interpreter in a container. Pure.

A frame is a JSON object and any number of blobs: `header length | blobs length | header | blobs`. The header has the
length of each blob. Frames from a container are hostile input: sizes are checked before anything is buffered, and an
invalid frame raises `InvalidFrame`, which ends the container.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Final, cast

_PREFIX: Final = struct.Struct(">II")
MAX_HEADER_BYTES: Final = 32 << 20
MAX_BLOB_BYTES: Final = 32 << 20
"""All blobs of one frame together: the reader holds them in memory."""

Frame = tuple[dict[str, Any], list[bytes]]


class InvalidFrame(ValueError):
    """The bytes are not a valid frame."""


def encode(header: dict[str, Any], blobs: tuple[bytes, ...] = ()) -> bytes:
    """Encode a frame."""
    head = json.dumps({**header, "blobs": [len(blob) for blob in blobs]}).encode()
    return b"".join((_PREFIX.pack(len(head), sum(map(len, blobs))), head, *blobs))


class Decoder:
    """Buffers bytes until a frame is complete. Bound `max_header_bytes` if the sender is not trusted: it is parsed."""

    def __init__(self, max_header_bytes: int = MAX_HEADER_BYTES) -> None:
        self._buffer = bytearray()
        self._max_header_bytes = max_header_bytes

    def feed(self, data: bytes) -> list[Frame]:
        self._buffer += data
        frames: list[Frame] = []
        while (frame := self._next()) is not None:
            frames.append(frame)
        return frames

    def _next(self) -> Frame | None:
        if len(self._buffer) < _PREFIX.size:
            return None
        head, body = _PREFIX.unpack_from(self._buffer)
        if head > self._max_header_bytes or body > MAX_BLOB_BYTES:
            message = f"a frame of {head} + {body} bytes is too large"
            raise InvalidFrame(message)
        end = _PREFIX.size + head + body
        if len(self._buffer) < end:
            return None
        body_start = _PREFIX.size + head
        header = bytes(self._buffer[_PREFIX.size : body_start])
        with memoryview(self._buffer) as view, view[body_start:end] as blobs:  # each blob is copied once
            frame = _parse(header, blobs)
        del self._buffer[:end]
        return frame


def _parse(head: bytes, body: memoryview) -> Frame:
    try:
        header: Any = json.loads(head)
        lengths = header["blobs"]
        blobs: list[bytes] = []
        start = 0
        for length in lengths:
            if type(length) is not int or length < 0:
                message = "a blob length is not a number"
                raise InvalidFrame(message)
            blobs.append(bytes(body[start : start + length]))
            start += length
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        message = f"not a frame: {error}"
        raise InvalidFrame(message) from error
    if start != len(body) or not isinstance(header, dict):
        message = "blob lengths do not add up"
        raise InvalidFrame(message)
    return cast("dict[str, Any]", header), blobs
