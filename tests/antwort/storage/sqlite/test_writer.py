from __future__ import annotations

import asyncio
import sqlite3
import threading

import pytest

from antwort.engine.stores import StoreFault
from antwort.storage.sqlite.database import connect
from antwort.storage.sqlite.writer import WriterThread

pytestmark = pytest.mark.anyio


class Opened:
    """A writer, the transactions that it begins, and a way to hold it up."""

    def __init__(self, path):
        self.path = path
        connection = connect(path, 0.1)
        connection.execute("CREATE TABLE kept (value UNIQUE)")
        self.statements = []
        connection.set_trace_callback(self.statements.append)
        self.writer = WriterThread(connection)
        self.gate = threading.Event()

    @property
    def commits(self):
        return self.statements.count("COMMIT")

    def kept(self):
        connection = sqlite3.connect(self.path)
        try:
            return [value for (value,) in connection.execute("SELECT value FROM kept ORDER BY rowid")]
        finally:
            connection.close()

    def hold(self):
        """The writer is busy until the gate opens."""
        return asyncio.ensure_future(self.writer.write(lambda _: self.gate.wait()))

    def keep(self, value):
        def change(connection):
            connection.execute("INSERT INTO kept VALUES (?)", (value,))
            return value

        return asyncio.ensure_future(self.writer.write(change))


@pytest.fixture
def opened(tmp_path):
    opened = Opened(tmp_path / "test.db")
    yield opened
    opened.gate.set()
    opened.writer.close()


async def test_who_comes_while_another_is_served_shares_one_commit(opened):
    held = opened.hold()
    await asyncio.sleep(0.02)
    waiting = [opened.keep(number) for number in range(50)]
    await asyncio.sleep(0.02)
    opened.gate.set()

    assert await asyncio.gather(held, *waiting) == [True, *range(50)]
    assert opened.commits == 2
    assert opened.kept() == [*range(50)]


async def test_one_that_fails_does_not_take_its_neighbours_along(opened):
    def half(connection):
        connection.execute("INSERT INTO kept VALUES ('half')")
        raise LookupError("in the middle")

    held = opened.hold()
    await asyncio.sleep(0.02)
    waiting = [opened.keep(1), asyncio.ensure_future(opened.writer.write(half)), opened.keep(1), opened.keep(2)]
    opened.gate.set()
    await held
    one, failed, again, two = await asyncio.gather(*waiting, return_exceptions=True)

    assert (one, two) == (1, 2)
    assert isinstance(failed, LookupError)
    assert isinstance(again, sqlite3.IntegrityError)
    assert opened.kept() == [1, 2]


async def test_when_a_transaction_is_lost_each_change_is_tried_alone(opened):
    def lose(connection):
        connection.execute("INSERT INTO kept VALUES ('lost')")
        connection.execute("ROLLBACK")
        raise sqlite3.OperationalError("as SQLite does when a disk is full")

    told = []
    held = opened.hold()
    await asyncio.sleep(0.02)
    waiting = [opened.keep(1), asyncio.ensure_future(opened.writer.write(lose, told.append)), opened.keep(2)]
    opened.gate.set()
    await held
    one, lost, two = await asyncio.gather(*waiting, return_exceptions=True)

    assert (one, two) == (1, 2)
    assert isinstance(lost, sqlite3.OperationalError)
    assert str(lost) == "as SQLite does when a disk is full"
    assert told == [False]
    assert opened.kept() == [1, 2]


async def test_a_change_that_was_handed_over_is_made_also_when_nobody_waits_any_more(opened):
    told = []
    held = opened.hold()
    await asyncio.sleep(0.02)
    waiting = asyncio.ensure_future(
        opened.writer.write(lambda connection: connection.execute("INSERT INTO kept VALUES (1)"), told.append)
    )
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    opened.gate.set()
    await held
    await opened.keep(2)

    assert told == [True]
    assert opened.kept() == [1, 2]


async def test_closing_finishes_what_was_handed_over_and_takes_nothing_more(opened):
    held = opened.hold()
    waiting = opened.keep(1)
    await asyncio.sleep(0.02)
    opened.gate.set()
    await asyncio.to_thread(opened.writer.close)
    told = []

    assert await asyncio.gather(held, waiting) == [True, 1]
    with pytest.raises(StoreFault, match="closed"):
        await opened.writer.write(lambda _: None, told.append)
    assert told == [False]
    assert opened.kept() == [1]


async def test_a_locked_database_is_a_fault_and_passes(opened):
    other = sqlite3.connect(opened.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreFault, match="locked") as fault:
        await opened.keep(1)
    other.execute("ROLLBACK")
    other.close()

    assert isinstance(fault.value.__cause__, sqlite3.OperationalError)
    assert await opened.keep(2) == 2
    assert opened.kept() == [2]


async def test_a_loop_that_has_ended_does_not_stop_the_writer(opened):
    def elsewhere():
        loop = asyncio.new_event_loop()
        task = loop.create_task(opened.writer.write(lambda _: opened.gate.wait()))
        loop.run_until_complete(asyncio.sleep(0.01))
        task.cancel()
        loop.run_until_complete(asyncio.wait([task]))
        loop.close()

    await asyncio.to_thread(elsewhere)
    opened.gate.set()

    assert await opened.keep(1) == 1
