"""Frames between the server and the interpreter in a container. Pure: bytes in, frames out.

A frame is a JSON object and any number of byte strings: `header length | blobs length | header | blobs`. The header
says how long each blob is. What comes from a container is hostile until proven otherwise: sizes are bounded before
anything is kept, and a frame that is not exactly right raises `BrokenFrame`, which ends the container.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Final

_PREFIX: Final = struct.Struct(">II")
LARGEST_HEADER: Final = 32 << 20
LARGEST_BLOBS: Final = 64 << 20

Frame = tuple[dict[str, Any], list[bytes]]


class BrokenFrame(ValueError):
    """What was sent is not a frame."""


def encode(header: dict[str, Any], blobs: tuple[bytes, ...] = ()) -> bytes:
    head = json.dumps({**header, "blobs": [len(blob) for blob in blobs]}).encode()
    return b"".join((_PREFIX.pack(len(head), sum(map(len, blobs))), head, *blobs))


class Decoder:
    """Collects bytes until a frame is whole."""

    def __init__(self) -> None:
        self._buffer = bytearray()

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
        if head > LARGEST_HEADER or body > LARGEST_BLOBS:
            message = f"a frame of {head} + {body} bytes is too large"
            raise BrokenFrame(message)
        end = _PREFIX.size + head + body
        if len(self._buffer) < end:
            return None
        whole = bytes(self._buffer[_PREFIX.size : end])
        del self._buffer[:end]
        return _parse(whole[:head], whole[head:])


def _parse(head: bytes, body: bytes) -> Frame:
    try:
        header: Any = json.loads(head)
        lengths = header["blobs"]
        blobs: list[bytes] = []
        start = 0
        for length in lengths:
            if type(length) is not int or length < 0:
                message = "a length is not a number"
                raise BrokenFrame(message)
            blobs.append(body[start : start + length])
            start += length
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        message = f"not a frame: {error}"
        raise BrokenFrame(message) from error
    if start != len(body) or not isinstance(header, dict):
        message = "lengths do not add up"
        raise BrokenFrame(message)
    return header, blobs
