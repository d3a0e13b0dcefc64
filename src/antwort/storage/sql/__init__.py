"""The store in SQL: one set of statements for every database, in the dialect that `rows.Dialect` describes."""

from __future__ import annotations

__all__: list[str] = []
