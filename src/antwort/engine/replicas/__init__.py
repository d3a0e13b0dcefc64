"""Replicas, several server processes on one store: membership, take-over, periodic jobs, rate limits of all."""

from __future__ import annotations

__all__: list[str] = []
