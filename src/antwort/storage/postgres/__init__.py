"""The store on PostgreSQL: connection pool in threads, migrations. The only package that imports psycopg."""

from __future__ import annotations

__all__: list[str] = []
