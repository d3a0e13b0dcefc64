"""Lanes of a WebSocket: requests of one `stream_id` wait for each other, those of different ones run at the same time.

Pure. The limits are OpenAI's: 32 named lanes, and 16 responses at a time. Requests that wait have a limit of their own,
in number and bytes, because they are memory that a client fills.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from antwort.api.errors import ApiError, invalid
from antwort.http.wires.websocket.messages import ClientMessage

MAX_LANES: Final = 32
MAX_RUNNING: Final = 16
MAX_WAITING: Final = 64


@dataclass
class Lanes:
    """The requests that wait, by lane. `max_bytes` limits all of them together."""

    max_bytes: int
    _waiting: dict[str | None, deque[ClientMessage]] = field(default_factory=dict[str | None, deque[ClientMessage]])
    _number: int = 0
    _bytes: int = 0

    def add(self, message: ClientMessage) -> None:
        """Add a request to its lane; `ApiError` if there are too many lanes, or too many requests wait."""
        lane = message.stream_id
        is_new = lane is not None and lane not in self._waiting
        if is_new and sum(name is not None for name in self._waiting) >= MAX_LANES:
            reason = (
                f"This WebSocket connection has reached its maximum number of distinct stream IDs ({MAX_LANES}). "
                "Reuse one of them, or open another connection."
            )
            raise invalid(reason, param="stream_id", code="websocket_stream_limit_reached")
        if self._number >= MAX_WAITING or (self._number and self._bytes + len(message.body) > self.max_bytes):
            reason = "Too many requests wait on this WebSocket connection: send the next one when a response has ended."
            raise ApiError(429, reason, kind="rate_limit_error", code="websocket_queue_full", retry_after=1)
        self._waiting.setdefault(lane, deque()).append(message)
        self._number += 1
        self._bytes += len(message.body)

    def has_next(self, lane: str | None) -> bool:
        """Whether a request of the lane waits."""
        return bool(self._waiting[lane])

    def take(self, lane: str | None) -> ClientMessage:
        """The next request of a lane."""
        message = self._waiting[lane].popleft()
        self._number -= 1
        self._bytes -= len(message.body)
        return message
