from __future__ import annotations

import asyncio
import sqlite3
import threading

import pytest

from antwort.engine.stores import StoreFault
from antwort.storage.sqlite.database import connect
from antwort.storage.sqlite.writer import WriterThread

pytestmark = pytest.mark.anyio


class WriterHarness:
    """A WriterThread that records its statements and can be blocked."""

    def __init__(self, path):
        self.path = path
        connection = connect(path, 0.1)
        connection.execute("CREATE TABLE entries (value UNIQUE)")
        self.statements = []
        connection.set_trace_callback(self.statements.append)
        self.writer = WriterThread(connection)
        self.unblock = threading.Event()

    @property
    def commits(self):
        return self.statements.count("COMMIT")

    def values(self):
        connection = sqlite3.connect(self.path)
        try:
            return [value for (value,) in connection.execute("SELECT value FROM entries ORDER BY rowid")]
        finally:
            connection.close()

    def block(self):
        """Keeps the writer thread busy until `unblock` is set."""
        return asyncio.ensure_future(self.writer.write(lambda _: self.unblock.wait()))

    def insert(self, value):
        def change(connection):
            connection.execute("INSERT INTO entries VALUES (?)", (value,))
            return value

        return asyncio.ensure_future(self.writer.write(change))


@pytest.fixture
def harness(tmp_path):
    harness = WriterHarness(tmp_path / "test.db")
    yield harness
    harness.unblock.set()
    harness.writer.close()


async def test_writes_queued_during_a_commit_share_the_next_commit(harness):
    blocked = harness.block()
    await asyncio.sleep(0.02)
    waiting = [harness.insert(number) for number in range(50)]
    await asyncio.sleep(0.02)
    harness.unblock.set()

    assert await asyncio.gather(blocked, *waiting) == [True, *range(50)]
    assert harness.commits == 2
    assert harness.values() == [*range(50)]


async def test_a_failing_change_does_not_roll_back_others_in_its_group(harness):
    def half(connection):
        connection.execute("INSERT INTO entries VALUES ('half')")
        raise LookupError("in the middle")

    blocked = harness.block()
    await asyncio.sleep(0.02)
    waiting = [
        harness.insert(1),
        asyncio.ensure_future(harness.writer.write(half)),
        harness.insert(1),
        harness.insert(2),
    ]
    harness.unblock.set()
    await blocked
    one, failed, again, two = await asyncio.gather(*waiting, return_exceptions=True)

    assert (one, two) == (1, 2)
    assert isinstance(failed, LookupError)
    assert isinstance(again, sqlite3.IntegrityError)
    assert harness.values() == [1, 2]


async def test_after_a_lost_transaction_each_change_is_retried_alone(harness):
    def lose(connection):
        connection.execute("INSERT INTO entries VALUES ('lost')")
        connection.execute("ROLLBACK")
        raise sqlite3.OperationalError("as SQLite does when a disk is full")

    outcomes = []
    blocked = harness.block()
    await asyncio.sleep(0.02)
    waiting = [harness.insert(1), asyncio.ensure_future(harness.writer.write(lose, outcomes.append)), harness.insert(2)]
    harness.unblock.set()
    await blocked
    one, lost, two = await asyncio.gather(*waiting, return_exceptions=True)

    assert (one, two) == (1, 2)
    assert isinstance(lost, sqlite3.OperationalError)
    assert str(lost) == "as SQLite does when a disk is full"
    assert outcomes == [False]
    assert harness.values() == [1, 2]


async def test_a_queued_change_is_committed_after_its_caller_is_cancelled(harness):
    outcomes = []
    blocked = harness.block()
    await asyncio.sleep(0.02)
    waiting = asyncio.ensure_future(
        harness.writer.write(lambda connection: connection.execute("INSERT INTO entries VALUES (1)"), outcomes.append)
    )
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    harness.unblock.set()
    await blocked
    await harness.insert(2)

    assert outcomes == [True]
    assert harness.values() == [1, 2]


async def test_close_commits_queued_changes_and_rejects_new_ones(harness):
    blocked = harness.block()
    waiting = harness.insert(1)
    await asyncio.sleep(0.02)
    harness.unblock.set()
    await asyncio.to_thread(harness.writer.close)
    outcomes = []

    assert await asyncio.gather(blocked, waiting) == [True, 1]
    with pytest.raises(StoreFault, match="closed"):
        await harness.writer.write(lambda _: None, outcomes.append)
    assert outcomes == [False]
    assert harness.values() == [1]


async def test_a_locked_database_is_a_store_fault_until_released(harness):
    other = sqlite3.connect(harness.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreFault, match="locked") as fault:
        await harness.insert(1)
    other.execute("ROLLBACK")
    other.close()

    assert isinstance(fault.value.__cause__, sqlite3.OperationalError)
    assert await harness.insert(2) == 2
    assert harness.values() == [2]


async def test_a_closed_event_loop_does_not_stop_the_writer(harness):
    def run_in_other_loop():
        loop = asyncio.new_event_loop()
        task = loop.create_task(harness.writer.write(lambda _: harness.unblock.wait()))
        loop.run_until_complete(asyncio.sleep(0.01))
        task.cancel()
        loop.run_until_complete(asyncio.wait([task]))
        loop.close()

    await asyncio.to_thread(run_in_other_loop)
    harness.unblock.set()

    assert await harness.insert(1) == 1
