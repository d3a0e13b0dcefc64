"""The hosted tools that come with the server, one room for each."""

from __future__ import annotations

__all__: list[str] = []
