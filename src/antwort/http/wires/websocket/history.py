"""Histories of the responses of one WebSocket that are not stored, so that its next requests can continue them.

Each lane keeps its newest response, in JSON. All of them together have a limit in bytes: above it the response that was
kept first is dropped.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from antwort.api.items import Raw
from antwort.engine.driver import ResponseRun
from antwort.http.bodies import MAX_INLINE_BYTES

_decoder = msgspec.json.Decoder(list[Raw])


class _KeptResponse(NamedTuple):
    response_id: str
    parts: tuple[bytes, ...]
    """The items of the responses of the chain, oldest first."""

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))


@dataclass
class ConnectionHistory:
    """The responses of one connection, by lane. Implements `RecentResponses`."""

    max_bytes: int
    _lanes: dict[str | None, _KeptResponse] = field(default_factory=dict[str | None, _KeptResponse])

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return sum(kept.size for kept in self._lanes.values())

    async def history(self, response_id: str) -> list[Raw] | None:
        """The items of the chain that ends with this response; None if it is not kept."""
        kept = self._find(response_id)
        if kept is None:
            return None
        if kept.size <= MAX_INLINE_BYTES:
            return _read(kept.parts)
        return await asyncio.to_thread(_read, kept.parts)

    def keep(self, lane: str | None, run: ResponseRun) -> None:
        """After the end of a response: it is the newest one of its lane, and kept unless it is stored."""
        earlier = self._earlier_parts(run)
        self._lanes.pop(lane, None)
        if run.is_stored:
            return
        kept = _KeptResponse(run.response.id, (*earlier, msgspec.json.encode(run.items)))
        if kept.size > self.max_bytes:
            return
        while self.size + kept.size > self.max_bytes:
            del self._lanes[next(iter(self._lanes))]
        self._lanes[lane] = kept

    def evict(self, lane: str | None, response_id: str | None) -> None:
        """After a failed continuation: forget the response that it continued, if it is of the same lane."""
        kept = self._lanes.get(lane)
        if kept is not None and kept.response_id == response_id:
            del self._lanes[lane]

    def _earlier_parts(self, run: ResponseRun) -> tuple[bytes, ...]:
        """What the response continues. A compaction replaces it."""
        previous = run.turn.request.previous_response_id
        if previous is None or run.turn.compacted is not None:
            return ()
        if run.context.is_previous_stored:
            return (msgspec.json.encode(run.context.previous),)
        kept = self._find(previous)
        # Another lane may have replaced it meanwhile.
        return (msgspec.json.encode(run.context.previous),) if kept is None else kept.parts

    def _find(self, response_id: str) -> _KeptResponse | None:
        return next((kept for kept in self._lanes.values() if kept.response_id == response_id), None)


def _read(parts: tuple[bytes, ...]) -> list[Raw]:
    return [item for part in parts for item in _decoder.decode(part)]
