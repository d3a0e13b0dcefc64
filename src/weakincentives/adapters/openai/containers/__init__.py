"""The Containers API: lifecycle, files, transfer and the container filesystem."""

from __future__ import annotations

__all__: list[str] = []
