"""Models behind a chat completions API: request, message and stream translation."""

from __future__ import annotations

__all__: list[str] = []
