"""Maintenance of a store by its URL: migration, and the connections of exports and imports. Blocks."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from antwort.storage.factory import is_postgres, load_postgres, sqlite_path
from antwort.storage.sqlite import maintenance as sqlite
from antwort.storage.sqlite.migrations import MIGRATIONS
from antwort.storage.transfer.port import TransferDatabase


class SchemaVersion(NamedTuple):
    """The version of the schema of a database, and that of this antwort."""

    found: int
    """0: there is no schema yet."""
    newest: int


def schema_version(url: str) -> SchemaVersion:
    """The version, without a change. `UnusableStore` if it is newer than that of this antwort."""
    if is_postgres(url):
        postgres = load_postgres("maintenance")
        return SchemaVersion(postgres.schema_version(url), len(postgres.MIGRATIONS))
    return SchemaVersion(sqlite.schema_version(sqlite_path(url)), len(MIGRATIONS))


def migrate_store(url: str) -> SchemaVersion:
    """Create or migrate the schema; the version before, and the one it has now."""
    if is_postgres(url):
        postgres = load_postgres("maintenance")
        return SchemaVersion(postgres.migrate_database(url), len(postgres.MIGRATIONS))
    return SchemaVersion(sqlite.migrate_file(sqlite_path(url)), len(MIGRATIONS))


def open_snapshot(url: str) -> TransferDatabase:
    """The database for an export."""
    return (
        load_postgres("maintenance").open_snapshot(url) if is_postgres(url) else sqlite.open_snapshot(sqlite_path(url))
    )


def open_target(url: str, blobs: Path | None) -> TransferDatabase:
    """The database for an import; created, migrated, and locked together with a directory of blobs."""
    if is_postgres(url):
        return load_postgres("maintenance").open_target(url)
    return sqlite.open_target(sqlite_path(url), blobs)
