"""Maintenance of an SQLite store: migration, and the connections of exports and imports. Blocks on the disk."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from antwort.storage.errors import UnusableStore, require_newest
from antwort.storage.sql import files
from antwort.storage.sql.database import Committed
from antwort.storage.sql.rows import Rows
from antwort.storage.sqlite.database import DIALECT, connect
from antwort.storage.sqlite.errors import translate_error, translate_errors
from antwort.storage.sqlite.lock import StoreLock
from antwort.storage.sqlite.migrations import MIGRATIONS, check_compatible, migrate
from antwort.storage.sqlite.store import LOCK_TIMEOUT


class SqliteTransfer:
    """A `TransferDatabase` in an open connection, whose transaction it begins."""

    insert_clause = ""

    def __init__(self, path: Path, connection: sqlite3.Connection, begin: str, lock: StoreLock | None = None) -> None:
        self._path = path
        self._connection = connection
        self._lock = lock
        self.rows = Rows(connection, DIALECT)
        with translate_errors():
            connection.execute(begin)

    def columns(self, table: str) -> dict[str, bool]:
        return dict.fromkeys((row[1] for row in self._connection.execute(f"PRAGMA table_info({table})")), False)

    def stream(self, sql: str, **values: object) -> Iterator[tuple[Any, ...]]:
        return iter(self.rows.execute(sql, **values))  # a cursor of SQLite computes a row when it is asked for it

    def still_referenced(self, blobs: Sequence[str]) -> set[str]:
        with closing(_open_read_only(self._path)) as connection:
            return files.referenced(Rows(connection, DIALECT), blobs)

    def rejection(self, error: Exception) -> Literal["duplicate", "invalid"] | None:
        if isinstance(error, sqlite3.IntegrityError):
            is_duplicate = error.sqlite_errorcode in {
                sqlite3.SQLITE_CONSTRAINT_UNIQUE,
                sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY,
            }
            return "duplicate" if is_duplicate else "invalid"
        return "invalid" if isinstance(error, (sqlite3.InterfaceError, sqlite3.DataError, OverflowError)) else None

    @contextmanager
    def translated_errors(self) -> Generator[None]:
        try:
            yield
        except sqlite3.Error as error:
            fault = translate_error(error)
            if fault is error:
                raise
            raise fault from error

    def commit(self) -> Committed:
        with translate_errors():
            self._connection.execute("COMMIT")
        return True

    def close(self) -> None:
        self._connection.close()
        if self._lock is not None:
            self._lock.release()


def open_snapshot(path: Path) -> SqliteTransfer:
    """A snapshot for an export. A server may use the database meanwhile."""
    connection = _open_read_only(path)
    try:
        require_newest(check_compatible(connection), len(MIGRATIONS))
        return SqliteTransfer(path, connection, "BEGIN")
    except BaseException:
        connection.close()
        raise


def open_target(path: Path, blobs: Path | None) -> SqliteTransfer:
    """The change of an import. The database is created and migrated; `UnusableStore` while a server uses it."""
    lock = _lock(path, blobs, "antwort import")
    try:
        with translate_errors():
            connection = connect(path, LOCK_TIMEOUT)
            try:
                migrate(connection)
                return SqliteTransfer(path, connection, "BEGIN IMMEDIATE", lock)
            except BaseException:
                connection.close()
                raise
    except BaseException:
        lock.release()
        raise


def schema_version(path: Path) -> int:
    """The version of the schema, 0 for a database that does not exist. Changes nothing."""
    if not path.exists():
        return 0
    with closing(_open_read_only(path)) as connection:
        return check_compatible(connection)


def migrate_file(path: Path) -> int:
    """Create or migrate the database; returns the version before. `UnusableStore` while a server uses it."""
    version = schema_version(path)
    if version == len(MIGRATIONS):
        return version
    lock = _lock(path, None, "antwort migrate")
    try:
        with translate_errors(), closing(connect(path, LOCK_TIMEOUT)) as connection:
            return migrate(connection)
    finally:
        lock.release()


def _open_read_only(path: Path) -> sqlite3.Connection:
    if not path.exists():
        raise UnusableStore(f"There is no database {path}. Set `storage.url` to that of the store.")
    try:
        # Not `immutable`: a server may start meanwhile.
        uri = f"file:{quote(str(path))}?mode=ro"
        connection = sqlite3.connect(uri, uri=True, timeout=LOCK_TIMEOUT, isolation_level=None)
        connection.execute("SELECT count(*) FROM sqlite_master")
    except sqlite3.Error as error:
        raise UnusableStore(f"Cannot read {path}: {error}. Repair the file, or change `storage.url`.") from error
    return connection


def _lock(path: Path, blobs: Path | None, command: str) -> StoreLock:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        return StoreLock(path, blobs, command=command)
    except OSError as error:
        raise UnusableStore(f"The store cannot be opened: {error}. Fix that, or change `storage`.") from error
