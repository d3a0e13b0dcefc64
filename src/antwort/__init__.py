"""The server's rooms: OpenAI's Responses API and its hosted tools, on your own machine or cluster.

It shares no code with `weakincentives`; the two meet on the wire only.
"""

from __future__ import annotations

__all__: list[str] = []
