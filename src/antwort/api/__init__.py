"""API types (the wire format): items, tools, requests, responses, events, errors, ids. No I/O, no other packages."""

from __future__ import annotations

__all__: list[str] = []
