"""Scripted model: answers from a YAML file, for tests, demonstrations and benchmarks."""

from __future__ import annotations

__all__: list[str] = []
