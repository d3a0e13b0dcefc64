"""The Responses API over a WebSocket: requests and events as JSON messages on one connection."""

from __future__ import annotations

__all__: list[str] = []
