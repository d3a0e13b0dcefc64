"""An SQLite database that tasks can use: one thread that writes, some that read, and the rows of one tenant.

WAL, so that readers and the writer do not wait for each other. `synchronous` is FULL and not NORMAL: NORMAL is
sound too but may forget the last commits when the power fails, and we promise that what is visible is durable.
The price is one wait for the disk per commit, which the group commit divides by those who share it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import local
from typing import Any, TypeVar

from antwort.engine.stores import Owner, StoreFault
from antwort.storage.errors import UnusableStore, faults_told
from antwort.storage.sqlite.writer import WriterThread

T = TypeVar("T")

READERS = 4
_WAL_KEPT = 64 * 1024 * 1024  # a WAL that had to grow is cut back to this


class Rows:
    """The rows of one tenant: the only way to the tables for what is done in somebody's name.

    The tenant is bound here, and a statement that does not ask for it is refused.
    """

    def __init__(self, connection: sqlite3.Connection, owner: Owner) -> None:
        self._connection = connection
        self._owner = owner

    def run(self, sql: str, **values: object) -> sqlite3.Cursor:
        """Run a statement, with `:tenant` and `:key_id` bound to the owner's."""
        return self._connection.execute(_scoped(sql), self._bound(values))

    def run_each(self, sql: str, values: Iterable[Mapping[str, object]]) -> None:
        """Run a statement once for each of these values."""
        self._connection.executemany(_scoped(sql), map(self._bound, values))

    def one(self, sql: str, **values: object) -> tuple[Any, ...] | None:
        """The first row, or None."""
        return self.run(sql, **values).fetchone()

    def _bound(self, values: Mapping[str, object]) -> dict[str, object]:
        return {**values, "tenant": self._owner.tenant, "key_id": self._owner.key_id}


def _scoped(sql: str) -> str:
    if ":tenant" not in sql:
        raise AssertionError(f"a statement must say whose rows it means: {sql}")
    return sql


class Database:
    """Open a file, made and brought up to date where needed. To be made and closed in a thread: both wait for disk."""

    def __init__(self, path: Path, *, patience: float) -> None:
        self._path = path
        self._patience = patience
        self._here = local()
        self._opened: list[sqlite3.Connection] = []
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="antwort-store-reader")
        self._writer = WriterThread(connect(path, patience))
        self._closed = False

    async def write(
        self, owner: Owner, change: Callable[[Rows], T], settled: Callable[[bool], None] = lambda _: None
    ) -> T:
        """Change rows of the owner's; durable when this returns. `settled` is always told whether it was done."""
        return await self._writer.write(lambda connection: change(Rows(connection, owner)), settled)

    async def write_everybodys(
        self, change: Callable[[sqlite3.Connection], T], settled: Callable[[bool], None] = lambda _: None
    ) -> T:
        """Change rows of all tenants: for what the server does in its own name."""
        return await self._writer.write(change, settled)

    async def read(self, owner: Owner, question: Callable[[Rows], T]) -> T:
        """Ask for rows of the owner's, all as of one moment."""
        return await self.read_everybodys(lambda connection: question(Rows(connection, owner)))

    async def read_everybodys(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """Ask for rows of all tenants: for what the server does in its own name."""
        if self._closed:
            raise StoreFault("The store is closed.")
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._ask, question)

    def close(self) -> None:
        """Finish what is under way, and let go of the file."""
        self._closed = True
        self._readers.shutdown()
        for connection in self._opened:
            connection.close()
        self._writer.close()  # last, so that SQLite folds the WAL into the database

    def _ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        with faults_told():
            connection = self._reader()
            connection.execute("BEGIN")
            try:
                return question(connection)
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def _reader(self) -> sqlite3.Connection:
        """The connection of the thread that asks."""
        if not hasattr(self._here, "connection"):
            self._here.connection = connect(self._path, self._patience)
            self._here.connection.execute("PRAGMA query_only = ON")
            self._opened.append(self._here.connection)
        return self._here.connection


def connect(path: Path, patience: float) -> sqlite3.Connection:
    """A connection as all of ours are; it waits so many seconds for a lock. Transactions are begun explicitly."""
    connection = sqlite3.connect(
        path, timeout=patience, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    try:
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten, not only unlinked
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_KEPT}")
    except BaseException:
        connection.close()
        raise
    if mode != "wal":
        connection.close()
        raise UnusableStore("SQLite cannot work here. Name a file on a disk of this machine in `storage.url`.")
    return connection
