"""Package installation for containers: requirements, installer, package cache, per-session packages."""

from __future__ import annotations

__all__: list[str] = []
