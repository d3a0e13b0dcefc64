"""Files of a container on the host: path-safe file operations, tar archives, disk quota."""

from __future__ import annotations

__all__: list[str] = []
