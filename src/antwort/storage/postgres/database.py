"""PostgreSQL database for asyncio: a connection pool whose transactions run in threads.

The statements are shared with SQLite and synchronous, so that each transaction has a thread and a connection while it
runs. They are sent in pipeline mode: a statement whose result is not read costs no round trip, and its error is raised
where the next result is read, at the latest by the commit. A transaction that takes longer than `OPERATION_TIMEOUT` is
aborted by a shutdown of its socket: a server that is stopped or unreachable sends no error, and libpq has no time-out
for reads.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from typing import Any, LiteralString, TypeVar, cast

import psycopg
from psycopg_pool import ConnectionPool, PoolTimeout

from antwort.engine.stores import Owner, StoreFault
from antwort.storage.postgres.errors import (
    is_connection_error,
    is_outdated,
    is_rolled_back,
    is_unusable,
    translate_error,
)
from antwort.storage.postgres.migrations import SCHEMA_LOCK, Connection
from antwort.storage.postgres.pipeline import PipelinedConnection, PipelinedCursor
from antwort.storage.sql.database import Committed, OnDone
from antwort.storage.sql.rows import Cursor, Dialect, Rows, TenantRows

T = TypeVar("T")

MAX_CONNECTIONS = 8
OPERATION_TIMEOUT = 10.0
"""Seconds for one transaction, with the wait for a thread and a connection."""
_STATEMENT_TIMEOUT_MS = 9_000
_IDLE_TIMEOUT_MS = 4_000
_TRANSACTION_TIMEOUT_MS = 12_000  # longer than that of the operation
_TRANSACTION_TIMEOUT_SINCE = 170_000
_POOL_TIMEOUT = 3.0
_CONFIGURE_TIMEOUT = 5.0
_AWAY_TIMEOUT = 0.3
_RETRY_INTERVAL = 0.5
_MAX_ATTEMPTS = 4
_BEGIN: LiteralString = "BEGIN ISOLATION LEVEL READ COMMITTED"
"""Whatever the default of the database is: a statement behind a lock must see what the transaction before has done."""
_NO_ANSWER = "The store failed: PostgreSQL did not answer in time."
_PARAMETER_RE = re.compile(r"(?<![:\w]):([a-z_]+)")


@lru_cache(maxsize=512)
def translated(sql: str) -> str:
    """A statement with psycopg's parameters: `%(name)s` for `:name`."""
    return _PARAMETER_RE.sub(r"%(\1)s", sql.replace("%", "%%"))


def _without_nul(values: Mapping[str, object]) -> dict[str, object]:
    """PostgreSQL cannot store U+0000 in text; it is replaced by U+FFFD."""
    return {
        name: value.replace("\0", "\ufffd") if isinstance(value, str) and "\0" in value else value
        for name, value in values.items()
    }


def _execute(connection: Connection, sql: str, values: Mapping[str, object]) -> Cursor:
    return cast("Cursor", connection.execute(cast("Any", translated(sql)), _without_nul(values)))


def _execute_many(connection: Connection, sql: str, values: Iterable[Mapping[str, object]]) -> None:
    connection.cursor().executemany(cast("Any", translated(sql)), map(_without_nul, values))


def _as_list(values: Sequence[str]) -> object:
    return [value.replace("\0", "\ufffd") for value in values]


DIALECT = Dialect(
    row_lock=" FOR UPDATE",
    skip_locked=" FOR UPDATE SKIP LOCKED",
    live_replicas="SELECT id FROM replicas",
    tenant_lock="SELECT pg_advisory_xact_lock(hashtextextended(:tenant, 0))",
    members="= ANY(:{})",
    as_list=_as_list,
    execute=_execute,
    executemany=_execute_many,
)


class _Operation:
    """A transaction that runs in a thread, and can be aborted from the event loop."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.started_at = 0.0
        self.is_aborted = False
        self.committed: Committed = False

    def start(self, connection: Connection) -> None:
        """The connection that the transaction uses; `StoreFault` if its time has run out."""
        self.connection, self.started_at = connection, time.monotonic()
        if self.is_aborted:
            raise StoreFault(_NO_ANSWER)

    def abort(self) -> None:
        """Shut the socket of the connection down; the waiting thread gets an error."""
        self.is_aborted = True
        if self.connection is not None:
            _shut_down(self.connection)


def _shut_down(connection: Connection) -> None:
    """Shut the socket of a connection down, from another thread than the one that uses it."""
    if not connection.closed:
        with suppress(OSError, psycopg.Error):
            descriptor = os.dup(connection.fileno())
            with socket.socket(fileno=descriptor) as own:
                own.shutdown(socket.SHUT_RDWR)


class PostgresDatabase:
    """A `Database`. Opening and closing block on the network.

    One for heartbeats connects again at every attempt, and does not wait for the disk of the server.
    """

    def __init__(
        self,
        url: str,
        *,
        max_connections: int = MAX_CONNECTIONS,
        timeout: float = OPERATION_TIMEOUT,
        is_heartbeat: bool = False,
    ) -> None:
        self._timeout = timeout
        self._pool_timeout = min(_POOL_TIMEOUT, timeout)
        self._has_connections = True
        self._drained_at = 0.0
        self._closed = False
        self._threads = ThreadPoolExecutor(max_connections, thread_name_prefix="antwort-postgres")
        self._pool: ConnectionPool[Connection] = ConnectionPool(
            url,
            min_size=1,
            max_size=max_connections,
            timeout=self._pool_timeout,
            reconnect_timeout=0 if is_heartbeat else _POOL_TIMEOUT,
            kwargs={
                "autocommit": True,
                "connect_timeout": 5,
                "application_name": "antwort",
                "cursor_factory": PipelinedCursor,
            },
            connection_class=PipelinedConnection,
            configure=partial(
                _configure_heartbeat if is_heartbeat else _configure, timeout=min(_CONFIGURE_TIMEOUT, timeout)
            ),
            open=True,
            name="antwort",
        )

    def connect(self) -> None:
        """Wait for the first connection; `PoolTimeout` if there is none in time. Blocks.

        A pool for heartbeats tries once for each request for a connection.
        """
        deadline = time.monotonic() + _CONFIGURE_TIMEOUT
        while True:
            try:
                with self._pool.connection(_RETRY_INTERVAL):
                    return
            except PoolTimeout:
                if time.monotonic() > deadline:
                    raise

    async def write(self, owner: Owner, change: Callable[[TenantRows], T], on_done: OnDone = lambda _: None) -> T:
        return await self.write_all_tenants(lambda rows: change(rows.of(owner)), on_done)

    async def write_all_tenants(self, change: Callable[[Rows], T], on_done: OnDone = lambda _: None) -> T:
        return await self._run(lambda operation: self._commit(operation, change, on_done), on_done)

    async def read(self, owner: Owner, query: Callable[[TenantRows], T]) -> T:
        return await self.read_all_tenants(lambda rows: query(rows.of(owner)))

    async def read_all_tenants(self, query: Callable[[Rows], T]) -> T:
        return await self._run(lambda operation: self._query(operation, query))

    async def check_writable(self) -> None:
        """Update a row of the migrations with its own value."""
        await self.write_all_tenants(lambda rows: rows.execute("UPDATE antwort_migrations SET version = version"))

    def close(self) -> None:
        self._closed = True
        self._threads.shutdown()
        self._pool.close()

    async def _run(self, work: Callable[[_Operation], T], on_done: OnDone = lambda _: None) -> T:
        """Run work in a thread. It is completed even if the caller is cancelled, and aborted at the time-out."""
        if self._closed:
            await asyncio.to_thread(on_done, False)  # noqa: FBT003 - a callback with the outcome
            raise StoreFault("The store is closed.")
        loop, operation = asyncio.get_running_loop(), _Operation()
        running = loop.run_in_executor(self._threads, work, operation)
        timer = loop.call_later(self._timeout, operation.abort)
        running.add_done_callback(lambda _: timer.cancel())
        return await asyncio.shield(running)

    def _commit(self, operation: _Operation, change: Callable[[Rows], T], on_done: OnDone) -> T:
        def commit(connection: Connection) -> T:
            operation.committed = False
            try:
                with connection.pipeline() as pipeline:
                    begun = connection.execute(_BEGIN)
                    value = change(Rows(connection, DIALECT))
                    if begun.pgresult is None:  # a broken idle connection is found before the commit is sent
                        pipeline.sync()
                    operation.committed = None
                    connection.execute("COMMIT")
            except psycopg.Error as error:
                if operation.committed is None and not is_connection_error(error):
                    operation.committed = False
                raise
            operation.committed = True
            return value

        try:
            return self._run_transaction(operation, commit)
        finally:
            on_done(operation.committed)

    def _query(self, operation: _Operation, query: Callable[[Rows], T]) -> T:
        def run(connection: Connection) -> T:
            with connection.pipeline():
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                value = query(Rows(connection, DIALECT))
                connection.execute("ROLLBACK")
            return value

        return self._run_transaction(operation, run)

    def _run_transaction(self, operation: _Operation, run: Callable[[Connection], T]) -> T:
        """Run a transaction; again after a conflict, and on a new connection, if it was certainly not committed."""
        attempt = 0
        while True:
            attempt += 1
            try:
                with self._pool.connection(self._connection_timeout(operation)) as connection:
                    self._has_connections = True
                    operation.start(connection)
                    try:
                        return run(connection)
                    except psycopg.Error as error:
                        if is_unusable(error):
                            connection.close()
                        raise
            except Exception as error:
                if not self._may_retry(error, operation, attempt):
                    fault = translate_error(error)
                    if fault is error:
                        raise
                    raise fault from error
            finally:
                operation.connection = None

    def _connection_timeout(self, operation: _Operation) -> float:
        """How long to wait for a connection; `StoreFault` if the time of the operation has run out before.

        While the server is away only the first ones wait long: the others would queue behind them.
        """
        if operation.is_aborted:
            raise StoreFault(_NO_ANSWER)
        return self._pool_timeout if self._has_connections else _AWAY_TIMEOUT

    def _may_retry(self, error: Exception, operation: _Operation, attempt: int) -> bool:
        if isinstance(error, PoolTimeout):
            self._has_connections = False
            return False
        if is_connection_error(error):
            self._drain(operation.started_at)
        elif not is_rolled_back(error) and not is_outdated(error):
            return False
        return operation.committed is not None and not operation.is_aborted and attempt < _MAX_ATTEMPTS

    def _drain(self, since: float) -> None:
        """Replace the idle connections, unless that was done since then.

        After a restart of the server they are broken as well. They are not tested: one that an unreachable server has
        left open answers nothing, not even an error, and a thread would wait for it without end.
        """
        if self._drained_at < since:
            self._drained_at = time.monotonic()
            self._pool.drain()


@contextmanager
def _limited(connection: Connection, seconds: float) -> Generator[None]:
    """Bound the set-up of a new connection: the pool, which has few threads for that, sets no time-out for it."""
    timer = threading.Timer(seconds, _shut_down, [connection])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _configure(connection: Connection, timeout: float) -> None:
    """Settings of a new connection."""
    with _limited(connection, timeout):
        _set_timeouts(connection)


def _set_timeouts(connection: Connection) -> None:
    """The time-outs of the server.

    The idle time-out frees the rows that a process has locked which was stopped within a transaction: no other replica
    could take over its responses. A transaction is not idle between a statement whose result is not read and the next
    one; there it takes the time-out of the transaction, which PostgreSQL has from version 17 on.
    """
    settings = {"statement_timeout": _STATEMENT_TIMEOUT_MS, "idle_in_transaction_session_timeout": _IDLE_TIMEOUT_MS}
    if connection.info.server_version >= _TRANSACTION_TIMEOUT_SINCE:
        settings["transaction_timeout"] = _TRANSACTION_TIMEOUT_MS
    connection.execute(
        "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS settings (name, value)",
        ([*settings], [str(value) for value in settings.values()]),
    )


def _configure_heartbeat(connection: Connection, timeout: float) -> None:
    """The same; a beat that is lost with a crash of PostgreSQL is followed by the next one.

    The connection shares the lock of the schema, which keeps an import from starting.
    """
    with _limited(connection, timeout):
        _set_timeouts(connection)
        connection.execute("SET synchronous_commit = off")
        row = connection.execute(f"SELECT pg_try_advisory_lock_shared({SCHEMA_LOCK})").fetchone()
    if row is None or not row[0]:
        raise StoreFault("The store failed: `antwort import` has the database for itself.")
