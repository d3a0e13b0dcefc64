"""One container as the sandbox server sees it: its process, control channel, output pipes and calls."""

from __future__ import annotations

__all__: list[str] = []
