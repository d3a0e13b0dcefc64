"""Server for OpenAI's Responses API and its hosted tools, on your own machine or cluster.

It shares no code with `weakincentives`; they communicate over HTTP only.
"""

from __future__ import annotations

__all__: list[str] = []
