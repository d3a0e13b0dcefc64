"""Tools that a request declares: where they come from (`tools`), and the names that models know them by (`names`)."""

from __future__ import annotations

__all__: list[str] = []
