"""The Responses API: requests, history, tool parameters, parsing and streaming of answers."""

from __future__ import annotations

__all__: list[str] = []
