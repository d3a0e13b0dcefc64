from __future__ import annotations

import asyncio
import sqlite3
import threading

import pytest

from antwort.engine.stores import Owner, StoreFault
from antwort.storage.sqlite.database import Database, Rows, connect
from antwort.storage.sqlite.migrations import migrate

pytestmark = pytest.mark.anyio
OWNER = Owner("tenant", "key")


@pytest.fixture
def database(tmp_path):
    with_tables = connect(tmp_path / "test.db", 0.1)
    migrate(with_tables)
    with_tables.close()
    database = Database(tmp_path / "test.db", patience=0.1)
    yield database
    database.close()


def count(rows):
    return rows.one("SELECT count(*) FROM responses WHERE tenant = :tenant")[0]


def insert(name):
    def change(rows):
        rows.run(
            "INSERT INTO responses (tenant, key_id, id, status, body, request)"
            " VALUES (:tenant, :key_id, :id, 'completed', '', '')",
            id=name,
        )

    return change


async def test_a_statement_that_does_not_say_whose_rows_it_means_is_refused(database):
    with pytest.raises(AssertionError, match="whose"):
        await database.read(OWNER, lambda rows: rows.one("SELECT count(*) FROM responses"))
    with pytest.raises(AssertionError, match="whose"):
        await database.write(OWNER, lambda rows: rows.run_each("DELETE FROM responses WHERE id = :id", [{"id": "1"}]))


async def test_nobody_can_pass_for_another_tenant(database):
    def forge(rows: Rows):
        return rows.one("SELECT :tenant, :key_id", tenant="another", key_id="another")

    assert await database.read(OWNER, forge) == ("tenant", "key")


async def test_a_reader_sees_one_moment_and_does_not_keep_the_writer_waiting(database):
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
    with pytest.raises(StoreFault, match="cannot be written"):
        await database.read(OWNER, insert("1"))

    assert await database.read(OWNER, count) == 0


async def test_our_own_mistakes_are_not_faults_of_the_store(database):
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        await database.read(OWNER, lambda rows: rows.one("SELECT :tenant FROM missing"))


def test_every_commit_waits_for_the_disk(tmp_path):
    connection = connect(tmp_path / "test.db", 0.1)
    asked = ("journal_mode", "synchronous", "foreign_keys", "secure_delete")
    found = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in asked]
    connection.close()

    full = 2
    assert found == ["wal", full, 1, 1]


async def test_a_closed_database_answers_with_a_fault(database):
    await asyncio.to_thread(database.close)
    with pytest.raises(StoreFault, match="closed"):
        await database.read(OWNER, count)
    with pytest.raises(StoreFault, match="closed"):
        await database.write(OWNER, count)
