"""The wire: items, tools, requests, responses, events, errors, ids. Pure: no I/O, and nothing of the other rooms."""

from __future__ import annotations

__all__: list[str] = []
