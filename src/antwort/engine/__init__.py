"""Response engine: the agent turn, its driver, and the protocols of models, tools and stores. No HTTP, no SQL."""

from __future__ import annotations

__all__: list[str] = []
