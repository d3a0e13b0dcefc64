"""The pool of warm zygotes that containers are forked from, and the memory watchdog."""

from __future__ import annotations

__all__: list[str] = []
