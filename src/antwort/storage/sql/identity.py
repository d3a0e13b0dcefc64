"""Identity of a store: a random id in its database, which marks its blobs.

Without it, a second store at the same place would take them for orphans.
"""

from __future__ import annotations

from antwort.storage.sql.rows import Rows


def get(rows: Rows) -> str:
    """The id of the store, which a migration has written."""
    found = rows.fetchone("SELECT id FROM store_identity")
    assert found is not None  # noqa: S101 - a migration inserts the row
    return str(found[0])
