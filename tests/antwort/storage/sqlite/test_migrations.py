from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from antwort.storage import open_store
from antwort.storage.errors import UnusableStore
from antwort.storage.sqlite.database import connect
from antwort.storage.sqlite.migrations import MIGRATIONS, check_compatible, migrate


@pytest.fixture
def connection(tmp_path):
    connection = connect(tmp_path / "test.db", 0.1)
    yield connection
    connection.close()


def version(connection):
    return connection.execute("PRAGMA user_version").fetchone()[0]


def tables(connection):
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def test_an_empty_file_is_migrated_to_the_newest_version(connection):
    migrate(connection)

    assert version(connection) == len(MIGRATIONS)
    assert tables(connection) >= {
        "responses",
        "response_items",
        "events",
        "conversations",
        "files",
        "containers",
        "container_files",
    }


def test_version_1_data_survives_the_migration(connection):
    migrate(connection, MIGRATIONS[:1])
    connection.execute(
        "INSERT INTO conversations (tenant, key_id, id, created_at, metadata) VALUES ('t', 'k', 'c', 1, '{}')"
    )
    migrate(connection)

    assert connection.execute("SELECT id FROM conversations").fetchall() == [("c",)]
    assert connection.execute("SELECT * FROM containers").fetchall() == []


def test_every_table_of_objects_has_a_tenant_column(connection):
    migrate(connection)

    columns = {table: connection.execute(f"PRAGMA table_info({table})").fetchall() for table in tables(connection)}
    assert [table for table, rows in columns.items() if "tenant" not in {row[1] for row in rows}] == ["store_identity"]


def test_each_migration_runs_once_and_in_order(connection):
    steps = [["CREATE TABLE a (x)"], ["ALTER TABLE a RENAME TO b", "CREATE TABLE c (x)"]]
    migrate(connection, steps[:1])
    connection.execute("INSERT INTO a VALUES (1)")
    migrate(connection, steps)
    migrate(connection, steps)

    assert version(connection) == 2
    assert tables(connection) == {"b", "c"}
    assert connection.execute("SELECT x FROM b").fetchall() == [(1,)]


class InterruptedConnection:
    """A connection before one of whose statements another process makes the tables."""

    def __init__(self, connection: sqlite3.Connection, path: Path, interrupted: int) -> None:
        self._connection = connection
        self._path = path
        self._left = interrupted

    def execute(self, statement: str) -> sqlite3.Cursor:
        self._left -= 1
        if self._left == 0:
            with closing(connect(self._path, 5.0)) as other:
                migrate(other)
        return self._connection.execute(statement)


@pytest.mark.parametrize("interrupted", [2, 3])
def test_a_migration_that_is_committed_during_the_look_at_the_file_is_not_another_program(
    connection, tmp_path, interrupted
):
    """As where an import makes the tables while a server starts."""
    found = check_compatible(cast("Any", InterruptedConnection(connection, tmp_path / "test.db", interrupted)))
    assert found in (0, len(MIGRATIONS))
    assert version(connection) == len(MIGRATIONS)


def test_a_failed_migration_is_rolled_back(connection):
    steps = [["CREATE TABLE a (x)"], ["DROP TABLE a", "CREATE TABLE b (x)", "invalid SQL"]]
    with pytest.raises(sqlite3.OperationalError):
        migrate(connection, steps)

    assert version(connection) == 1
    assert tables(connection) == {"a"}
    assert not connection.in_transaction


def test_a_newer_database_is_rejected_and_unchanged(connection):
    migrate(connection, [["CREATE TABLE a (x)"], ["CREATE TABLE b (x)"]])
    with pytest.raises(UnusableStore, match=r"has version 2, and this antwort supports versions up to 1.*newer"):
        migrate(connection, [["CREATE TABLE a (x)"]])

    assert version(connection) == 2


@pytest.mark.anyio
async def test_a_database_of_another_program_is_rejected_and_unchanged(tmp_path):
    path = tmp_path / "foreign.db"
    foreign = sqlite3.connect(path)
    foreign.execute("CREATE TABLE responses (x)")
    foreign.close()
    before = path.read_bytes()
    with pytest.raises(UnusableStore, match="another program"):
        await open_store(f"sqlite:///{path}", tmp_path / "blobs")

    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith("foreign")] == ["foreign.db"]
