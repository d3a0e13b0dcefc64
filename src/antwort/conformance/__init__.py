"""Conformance suite for servers that speak OpenAI's Responses API: `antwort conformance URL`.

A black box: it shares no code with the server of this project.
"""

from __future__ import annotations

__all__: list[str] = []
