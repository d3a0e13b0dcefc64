"""The unfinished responses of an SQL store, of whatever process."""

from __future__ import annotations

from typing import Any


async def unfinished_ids(store: Any) -> list[str]:
    """The ids of the responses that are queued or in progress."""
    query = "SELECT id FROM responses WHERE status IN ('queued', 'in_progress') ORDER BY key"
    return [row[0] for row in await store._database.read_all_tenants(lambda rows: rows.execute(query).fetchall())]
