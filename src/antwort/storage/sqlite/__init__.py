"""The SQLite store: database, writer thread with group commit, migrations, tables."""

from __future__ import annotations

__all__: list[str] = []
