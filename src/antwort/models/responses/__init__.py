"""Models behind a Responses API: request and stream translation."""

from __future__ import annotations

__all__: list[str] = []
