"""Frames between the server and the interpreter in a container. Pure: bytes in, frames out.

A frame is a JSON object and any number of byte strings: `header length | blobs length | header | blobs`. The header
says how long each blob is. What comes from a container is hostile until proven otherwise: sizes are bounded before
anything is kept, and a frame that is not exactly right raises `BrokenFrame`, which ends the container.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Final, cast

_PREFIX: Final = struct.Struct(">II")
LARGEST_HEADER: Final = 32 << 20
LARGEST_BLOBS: Final = 32 << 20
"""Together, of one frame: all of it waits in the memory of whoever reads it."""

Frame = tuple[dict[str, Any], list[bytes]]


class BrokenFrame(ValueError):
    """What was sent is not a frame."""


def encode(header: dict[str, Any], blobs: tuple[bytes, ...] = ()) -> bytes:
    """A frame as bytes."""
    head = json.dumps({**header, "blobs": [len(blob) for blob in blobs]}).encode()
    return b"".join((_PREFIX.pack(len(head), sum(map(len, blobs))), head, *blobs))


class Decoder:
    """Collects bytes until a frame is whole. A header is parsed, so whoever does not trust the other side bounds it."""

    def __init__(self, largest_header: int = LARGEST_HEADER) -> None:
        self._buffer = bytearray()
        self._largest_header = largest_header

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
        if head > self._largest_header or body > LARGEST_BLOBS:
            message = f"a frame of {head} + {body} bytes is too large"
            raise BrokenFrame(message)
        end = _PREFIX.size + head + body
        if len(self._buffer) < end:
            return None
        body_start = _PREFIX.size + head
        header = bytes(self._buffer[_PREFIX.size : body_start])
        with memoryview(self._buffer) as view, view[body_start:end] as blobs:  # copied once, each into its own
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
                message = "a length is not a number"
                raise BrokenFrame(message)
            blobs.append(bytes(body[start : start + length]))
            start += length
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        message = f"not a frame: {error}"
        raise BrokenFrame(message) from error
    if start != len(body) or not isinstance(header, dict):
        message = "lengths do not add up"
        raise BrokenFrame(message)
    return cast("dict[str, Any]", header), blobs
