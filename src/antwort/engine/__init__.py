"""What happens between a request and its response: the turn, its fold, and the one driver. No HTTP, no SQL."""

from __future__ import annotations

__all__: list[str] = []
