"""One reply of a model: its calls, and the order in which its items are sent."""

from __future__ import annotations

__all__: list[str] = []
