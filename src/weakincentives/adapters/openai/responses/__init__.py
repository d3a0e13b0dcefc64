"""Responses API: requests, history, tool parameters, parsing and streaming of responses."""

from __future__ import annotations

__all__: list[str] = []
