"""A model that plays a script: for tests, demonstrations and benchmarks."""

from __future__ import annotations

__all__: list[str] = []
