"""HTTP handlers, one module per resource of the API."""

from __future__ import annotations

__all__: list[str] = []
