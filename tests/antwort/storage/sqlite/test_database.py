from __future__ import annotations

import asyncio
import sqlite3
import threading

import pytest

from antwort.engine.stores import Owner, StoreFault
from antwort.storage.sql.rows import TenantRows
from antwort.storage.sqlite.database import SqliteDatabase, connect
from antwort.storage.sqlite.migrations import migrate

pytestmark = pytest.mark.anyio
OWNER = Owner("tenant", "key")


@pytest.fixture
def database(tmp_path):
    connection = connect(tmp_path / "test.db", 0.1)
    migrate(connection)
    connection.close()
    database = SqliteDatabase(tmp_path / "test.db", lock_timeout=0.1)
    yield database
    database.close()


def count(rows):
    return rows.fetchone("SELECT count(*) FROM responses WHERE tenant = :tenant")[0]


def insert(name):
    def change(rows):
        rows.execute(
            "INSERT INTO responses (tenant, key_id, id, status, body, request)"
            " VALUES (:tenant, :key_id, :id, 'completed', '', '')",
            id=name,
        )

    return change


async def test_a_statement_without_the_tenant_parameter_is_rejected(database):
    with pytest.raises(AssertionError, match=":tenant"):
        await database.read(OWNER, lambda rows: rows.fetchone("SELECT count(*) FROM responses"))
    with pytest.raises(AssertionError, match=":tenant"):
        await database.write(
            OWNER, lambda rows: rows.executemany("DELETE FROM responses WHERE id = :id", [{"id": "1"}])
        )


async def test_a_statement_cannot_override_the_bound_tenant(database):
    def override(rows: TenantRows):
        return rows.fetchone("SELECT :tenant, :key_id", tenant="another", key_id="another")

    assert await database.read(OWNER, override) == ("tenant", "key")


async def test_a_read_sees_one_snapshot_and_does_not_block_the_writer(database):
    between = threading.Event()

    def twice(rows):
        first = count(rows)
        between.wait(5)
        return first, count(rows)

    reading = asyncio.ensure_future(database.read(OWNER, twice))
    await asyncio.sleep(0.05)
    await database.write(OWNER, insert("1"))
    between.set()

    assert await reading == (0, 0)
    assert await database.read(OWNER, count) == 1


async def test_a_reader_cannot_write(database):
    with pytest.raises(StoreFault, match="read-only"):
        await database.read(OWNER, insert("1"))

    assert await database.read(OWNER, count) == 0


async def test_a_programming_error_is_not_a_store_fault(database):
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        await database.read(OWNER, lambda rows: rows.fetchone("SELECT :tenant FROM missing"))


def test_connections_use_wal_full_sync_foreign_keys_and_secure_delete(tmp_path):
    connection = connect(tmp_path / "test.db", 0.1)
    pragmas = ("journal_mode", "synchronous", "foreign_keys", "secure_delete")
    found = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas]
    connection.close()

    full = 2
    assert found == ["wal", full, 1, 1]


async def test_a_closed_database_raises_a_store_fault(database):
    await asyncio.to_thread(database.close)
    with pytest.raises(StoreFault, match="closed"):
        await database.read(OWNER, count)
    with pytest.raises(StoreFault, match="closed"):
        await database.write(OWNER, count)
