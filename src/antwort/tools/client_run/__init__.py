"""Tools that the client runs, for any model: patches, local shells and computers."""

from __future__ import annotations

__all__: list[str] = []
