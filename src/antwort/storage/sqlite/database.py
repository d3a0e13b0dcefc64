"""SQLite database for asyncio: one writer thread and a pool of reader threads.

WAL mode, so that readers and the writer do not block each other. `synchronous` is FULL: with NORMAL a power failure
may lose the last commits, and the store promises that visible data is durable. The price is one fsync per commit,
which group commit shares among concurrent writes.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import local
from typing import TypeVar

import msgspec

from antwort.engine.stores import Owner, StoreFault
from antwort.storage.errors import UnusableStore
from antwort.storage.sql.database import OnDone
from antwort.storage.sql.rows import Dialect, Rows, TenantRows
from antwort.storage.sqlite.errors import translate_errors
from antwort.storage.sqlite.migrations import check_writable
from antwort.storage.sqlite.writer import WriterThread

T = TypeVar("T")

READER_THREADS = 4
_WAL_SIZE_LIMIT = 64 * 1024 * 1024  # a larger WAL is truncated to this after a checkpoint


DIALECT = Dialect(
    row_lock="",
    skip_locked="",
    live_replicas="SELECT NULL WHERE FALSE",
    tenant_lock="",
    members="IN (SELECT value FROM json_each(:{}))",
    as_list=lambda values: msgspec.json.encode(list(values)).decode(),
    execute=lambda connection, sql, values: connection.execute(sql, values),
    executemany=lambda connection, sql, values: connection.executemany(sql, values),
)
"""SQLite has one writer at a time, so that changes need no locks, and one server process at a time."""


class SqliteDatabase:
    """A `Database`: an open SQLite file. Opening and closing block on the disk."""

    def __init__(self, path: Path, *, lock_timeout: float) -> None:
        self._path = path
        self._lock_timeout = lock_timeout
        self._thread_local = local()
        self._reader_connections: list[sqlite3.Connection] = []
        self._readers = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="antwort-store-reader")
        self._writer = WriterThread(connect(path, lock_timeout))
        self._closed = False

    async def write(self, owner: Owner, change: Callable[[TenantRows], T], on_done: OnDone = lambda _: None) -> T:
        """Run a change of the owner's rows; durable when this returns. `on_done` is always called with the outcome."""
        return await self._writer.write(lambda connection: change(TenantRows(connection, DIALECT, owner)), on_done)

    async def write_all_tenants(self, change: Callable[[Rows], T], on_done: OnDone = lambda _: None) -> T:
        """Run a change across all tenants, for maintenance by the server itself."""
        return await self._writer.write(lambda connection: change(Rows(connection, DIALECT)), on_done)

    async def read(self, owner: Owner, query: Callable[[TenantRows], T]) -> T:
        """Run a query on the owner's rows, in one snapshot."""
        return await self.read_all_tenants(lambda rows: query(rows.of(owner)))

    async def read_all_tenants(self, query: Callable[[Rows], T]) -> T:
        """Run a query across all tenants, for maintenance by the server itself."""
        if self._closed:
            raise StoreFault("The store is closed.")
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._run_query, query)

    async def check_writable(self) -> None:
        """Write to the file without a change of its content."""
        await self._writer.write(check_writable)

    def close(self) -> None:
        """Wait for running operations and close all connections."""
        self._closed = True
        self._readers.shutdown()
        for connection in self._reader_connections:
            connection.close()
        self._writer.close()  # last, so that SQLite checkpoints the WAL into the database

    def _run_query(self, query: Callable[[Rows], T]) -> T:
        with translate_errors():
            connection = self._reader_connection()
            connection.execute("BEGIN")
            try:
                return query(Rows(connection, DIALECT))
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def _reader_connection(self) -> sqlite3.Connection:
        """The connection of the current reader thread."""
        if not hasattr(self._thread_local, "connection"):
            self._thread_local.connection = connect(self._path, self._lock_timeout)
            self._thread_local.connection.execute("PRAGMA query_only = ON")
            self._reader_connections.append(self._thread_local.connection)
        return self._thread_local.connection


def connect(path: Path, lock_timeout: float) -> sqlite3.Connection:
    """Open a connection that waits `lock_timeout` seconds for a lock. Transactions are begun explicitly."""
    connection = sqlite3.connect(
        path, timeout=lock_timeout, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    try:
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")  # deleted data is overwritten
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_SIZE_LIMIT}")
    except BaseException:
        connection.close()
        raise
    if mode != "wal":
        connection.close()
        remedy = "Set `storage.url` to a file on a local disk."
        raise UnusableStore(f"SQLite's WAL mode does not work on this file system. {remedy}")
    return connection
