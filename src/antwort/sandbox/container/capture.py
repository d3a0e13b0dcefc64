"""What a call printed: two streams, kept apart and in order, capped with head and tail kept. Pure."""

from __future__ import annotations

import codecs
from collections import deque
from dataclasses import dataclass, field
from typing import Final, Literal

StreamName = Literal["stdout", "stderr"]

_COST_OF_A_PIECE: Final = 64
"""Each piece counts at least this much, so that a flood of single bytes cannot cost more memory than the cap."""


@dataclass(slots=True)
class _Piece:
    order: int
    data: bytearray

    @property
    def cost(self) -> int:
        return max(len(self.data), _COST_OF_A_PIECE)


@dataclass(slots=True)
class _Stream:
    half: int
    head: list[_Piece] = field(default_factory=list[_Piece])
    tail: deque[_Piece] = field(default_factory=deque[_Piece])
    head_cost: int = 0
    tail_cost: int = 0
    cut: int = 0
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    def keep(self, order: int, data: bytes) -> bytes:
        """Keep what fits; answers the part that went into the head, which may be shown at once."""
        # Once something has gone past the head it is closed, or later bytes would stand before earlier ones.
        shown = b"" if self.tail or self.cut else data[: max(0, self.half - self.head_cost)]
        if shown:
            self.head_cost += _append(self.head, order, shown)
        rest = data[len(shown) :]
        if rest:
            # Only the last `half` bytes can survive, so the others are not even copied.
            self.cut += max(0, len(rest) - self.half)
            self.tail_cost += _append(self.tail, order, rest[-self.half :])
            self._trim()
        return shown

    def _trim(self) -> None:
        while self.tail_cost > self.half:
            oldest = self.tail[0]
            surplus = self.tail_cost - self.half
            if oldest.cost <= surplus or len(oldest.data) <= _COST_OF_A_PIECE:
                self.tail_cost -= oldest.cost
                self.cut += len(oldest.data)
                self.tail.popleft()
                continue
            before = oldest.cost
            del oldest.data[:surplus]
            self.cut += surplus
            self.tail_cost -= before - oldest.cost

    def pieces(self) -> list[_Piece]:
        if not self.cut:
            return [*self.head, *self.tail]
        order = self.tail[0].order if self.tail else self.head[-1].order
        return [*self.head, _Piece(order, bytearray(mark(self.cut).encode())), *self.tail]


def mark(cut: int) -> str:
    """What stands where so many bytes were cut."""
    return f"\n[... {cut} bytes cut ...]\n"


def _append(pieces: list[_Piece] | deque[_Piece], order: int, data: bytes) -> int:
    """Add to the last piece if nothing of the other stream came between; answers what it cost."""
    if pieces and pieces[-1].order == order:
        before = pieces[-1].cost
        pieces[-1].data += data
        return pieces[-1].cost - before
    pieces.append(_Piece(order, bytearray(data)))
    return pieces[-1].cost


class Capture:
    """Both streams of one call."""

    def __init__(self, limit: int) -> None:
        self._streams: dict[StreamName, _Stream] = {"stdout": _Stream(limit // 2), "stderr": _Stream(limit // 2)}
        self._order = 0
        self._last: StreamName | None = None

    def feed(self, name: StreamName, data: bytes) -> str:
        """Keep these bytes; answers the text to show live, which is empty once the head is full."""
        if name != self._last:
            self._last = name
            self._order += 1
        stream = self._streams[name]
        return stream.decoder.decode(stream.keep(self._order, data))

    def rest(self, name: StreamName) -> str:
        """What was not shown live: the cut's mark and the tail."""
        stream = self._streams[name]
        text = stream.decoder.decode(b"", final=True)
        tail = b"".join(bytes(piece.data) for piece in stream.tail).decode(errors="replace")
        return text + (mark(stream.cut) if stream.cut else "") + tail

    def text(self, name: StreamName) -> str:
        return b"".join(bytes(piece.data) for piece in self._streams[name].pieces()).decode(errors="replace")

    def interleaved(self) -> list[tuple[StreamName, str]]:
        """Both streams as they came, neighbours joined."""
        pieces: list[tuple[int, StreamName, bytes]] = [
            (piece.order, name, bytes(piece.data)) for name, s in self._streams.items() for piece in s.pieces()
        ]
        pieces.sort(key=lambda piece: piece[0])
        joined: list[tuple[StreamName, bytes]] = []
        for _, name, data in pieces:
            if joined and joined[-1][0] == name:
                joined[-1] = (name, joined[-1][1] + data)
            else:
                joined.append((name, data))
        return [(name, data.decode(errors="replace")) for name, data in joined]

    @property
    def cut_bytes(self) -> int:
        return sum(stream.cut for stream in self._streams.values())
