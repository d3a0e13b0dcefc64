"""Wires: each reads requests of one API and writes its answers. All of them run on the one engine."""

from __future__ import annotations

__all__: list[str] = []
