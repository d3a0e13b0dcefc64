"""The process of the CLI: its directories, its environment, the sandbox of its commands, and its end."""

from __future__ import annotations

__all__: list[str] = []
