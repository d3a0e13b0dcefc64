"""Checkpoint of a background response: its steps as they are stored, and the state that they add up to. Pure."""

from __future__ import annotations

__all__: list[str] = []
