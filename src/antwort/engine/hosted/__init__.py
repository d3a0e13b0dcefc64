"""The engine's side of hosted tools: the guard around the code of providers, and the calls that run."""

from __future__ import annotations

__all__: list[str] = []
