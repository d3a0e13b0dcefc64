"""Built-in tool providers, one package for each."""

from __future__ import annotations

__all__: list[str] = []
