"""Output capture of one call: stdout and stderr, separate and interleaved, truncated to head and tail. Pure."""

from __future__ import annotations

import codecs
from collections import deque
from dataclasses import dataclass, field
from typing import Final, Literal

StreamName = Literal["stdout", "stderr"]

_MIN_CHUNK_COST: Final = 64
"""The least that a chunk counts, so that a flood of single bytes cannot use more memory than the limit."""


@dataclass(slots=True)
class _Chunk:
    order: int
    data: bytearray

    @property
    def cost(self) -> int:
        return max(len(self.data), _MIN_CHUNK_COST)


@dataclass(slots=True)
class _Stream:
    half: int
    head: list[_Chunk] = field(default_factory=list[_Chunk])
    tail: deque[_Chunk] = field(default_factory=deque[_Chunk])
    head_cost: int = 0
    tail_cost: int = 0
    cut_bytes: int = 0
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    def append(self, order: int, data: bytes) -> bytes:
        """Store what fits; returns the part that went into the head, which can be streamed at once."""
        # Once bytes went past the head it is closed, or later bytes would precede earlier ones.
        head = b"" if self.tail or self.cut_bytes else data[: max(0, self.half - self.head_cost)]
        if head:
            self.head_cost += _append(self.head, order, head)
        rest = data[len(head) :]
        if rest:
            # Only the last `half` bytes can be kept, so the others are not copied.
            self.cut_bytes += max(0, len(rest) - self.half)
            self.tail_cost += _append(self.tail, order, rest[-self.half :])
            self._trim()
        return head

    def _trim(self) -> None:
        while self.tail_cost > self.half:
            oldest = self.tail[0]
            surplus = self.tail_cost - self.half
            if oldest.cost <= surplus or len(oldest.data) <= _MIN_CHUNK_COST:
                self.tail_cost -= oldest.cost
                self.cut_bytes += len(oldest.data)
                self.tail.popleft()
                continue
            before = oldest.cost
            del oldest.data[:surplus]
            self.cut_bytes += surplus
            self.tail_cost -= before - oldest.cost

    def chunks(self) -> list[_Chunk]:
        if not self.cut_bytes:
            return [*self.head, *self.tail]
        order = self.tail[0].order if self.tail else self.head[-1].order
        return [*self.head, _Chunk(order, bytearray(cut_marker(self.cut_bytes).encode())), *self.tail]


def cut_marker(cut_bytes: int) -> str:
    """The text in place of the bytes that were cut."""
    return f"\n[... {cut_bytes} bytes cut ...]\n"


def _append(chunks: list[_Chunk] | deque[_Chunk], order: int, data: bytes) -> int:
    """Extend the last chunk unless the other stream was written in between; returns the added cost."""
    if chunks and chunks[-1].order == order:
        before = chunks[-1].cost
        chunks[-1].data += data
        return chunks[-1].cost - before
    chunks.append(_Chunk(order, bytearray(data)))
    return chunks[-1].cost


class Capture:
    """Both streams of one call."""

    def __init__(self, limit: int) -> None:
        self._streams: dict[StreamName, _Stream] = {"stdout": _Stream(limit // 2), "stderr": _Stream(limit // 2)}
        self._order = 0
        self._last: StreamName | None = None

    def feed(self, name: StreamName, data: bytes) -> str:
        """Store these bytes; returns the text to stream now, which is empty once the head is full."""
        if name != self._last:
            self._last = name
            self._order += 1
        stream = self._streams[name]
        return stream.decoder.decode(stream.append(self._order, data))

    def unsent(self, name: StreamName) -> str:
        """What `feed` did not return: the cut marker and the tail."""
        stream = self._streams[name]
        text = stream.decoder.decode(b"", final=True)
        tail = b"".join(bytes(chunk.data) for chunk in stream.tail).decode(errors="replace")
        return text + (cut_marker(stream.cut_bytes) if stream.cut_bytes else "") + tail

    def text(self, name: StreamName) -> str:
        return b"".join(bytes(chunk.data) for chunk in self._streams[name].chunks()).decode(errors="replace")

    def interleaved(self) -> list[tuple[StreamName, str]]:
        """Both streams in the order written, adjacent chunks of one stream joined."""
        chunks: list[tuple[int, StreamName, bytes]] = [
            (chunk.order, name, bytes(chunk.data)) for name, s in self._streams.items() for chunk in s.chunks()
        ]
        chunks.sort(key=lambda chunk: chunk[0])
        joined: list[tuple[StreamName, bytes]] = []
        for _, name, data in chunks:
            if joined and joined[-1][0] == name:
                joined[-1] = (name, joined[-1][1] + data)
            else:
                joined.append((name, data))
        return [(name, data.decode(errors="replace")) for name, data in joined]

    @property
    def cut_bytes(self) -> int:
        return sum(stream.cut_bytes for stream in self._streams.values())
