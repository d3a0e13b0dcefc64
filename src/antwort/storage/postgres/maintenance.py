"""Maintenance of a PostgreSQL store: migration, and the connections of exports and imports. Blocks on the network."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, LiteralString, cast

import psycopg
from psycopg.sql import SQL, Identifier

from antwort.storage.errors import require_newest
from antwort.storage.postgres.database import DIALECT, translated
from antwort.storage.postgres.errors import is_connection_error, translate_error
from antwort.storage.postgres.migrations import MIGRATIONS, Connection, check_compatible, migrate
from antwort.storage.postgres.store import CONNECT_TIMEOUT, lock_schema, start_error
from antwort.storage.sql import files
from antwort.storage.sql.database import Committed
from antwort.storage.sql.rows import Rows
from antwort.storage.transfer.tables import TABLES

_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class PostgresTransfer:
    """A `TransferDatabase` in an open connection, whose transaction it begins."""

    insert_clause = "OVERRIDING SYSTEM VALUE"

    def __init__(self, url: str, connection: Connection, begin: LiteralString) -> None:
        self._url = url
        self._connection = connection
        self.rows = Rows(connection, DIALECT)
        connection.execute(begin)

    def columns(self, table: str) -> dict[str, bool]:
        found = self._connection.execute(
            "SELECT column_name, data_type FROM information_schema.columns"
            " WHERE table_schema = current_schema() AND table_name = %s ORDER BY ordinal_position",
            (table,),
        )
        return {name: kind == "boolean" for name, kind in found}

    def stream(self, sql: str, **values: object) -> Iterator[tuple[Any, ...]]:
        # Binary: as text, bytes would arrive with twice their size.
        return self._connection.cursor().stream(cast("Any", translated(sql)), values, binary=True)

    def still_referenced(self, blobs: Sequence[str]) -> set[str]:
        with _start_errors(), _connect(self._url) as connection:
            return files.referenced(Rows(connection, DIALECT), blobs)

    def rejection(self, error: Exception) -> Literal["duplicate", "invalid"] | None:
        if isinstance(error, psycopg.errors.UniqueViolation):
            return "duplicate"
        is_invalid = isinstance(error, (psycopg.IntegrityError, psycopg.DataError, psycopg.errors.DatatypeMismatch))
        return "invalid" if is_invalid else None

    @contextmanager
    def translated_errors(self) -> Generator[None]:
        try:
            yield
        except psycopg.Error as error:
            fault = translate_error(error)
            if fault is error:
                raise
            raise fault from error

    def commit(self) -> Committed:
        for table in TABLES:
            if "key" in table.order:
                # The next key of the table. `is_called` is false, so that an empty table begins with 1.
                self._connection.execute(
                    SQL(
                        "SELECT setval(pg_get_serial_sequence({name}, 'key'),"
                        " (SELECT coalesce(max(key), 0) + 1 FROM {table}), false)"
                    ).format(name=table.name, table=Identifier(table.name))
                )
        try:
            self._connection.execute("COMMIT")
        except psycopg.Error as error:
            if is_connection_error(error):
                return None
            raise translate_error(error) from error
        return True

    def close(self) -> None:
        self._connection.close()


def open_snapshot(url: str) -> PostgresTransfer:
    """A snapshot for an export. Servers may use the database meanwhile."""
    with _start_errors():
        connection = _connect(url)
        try:
            require_newest(check_compatible(connection), len(MIGRATIONS))
            return PostgresTransfer(url, connection, _SNAPSHOT)
        except BaseException:
            connection.close()
            raise


def open_target(url: str) -> PostgresTransfer:
    """The change of an import. The tables are created and migrated; `UnusableStore` while a server uses them."""
    with _start_errors():
        connection = _connect(url)
        try:
            lock_schema(connection)
            migrate(connection)
            transfer = PostgresTransfer(url, connection, "BEGIN")
            for table in TABLES:  # also where a server does not hold the lock of the schema
                connection.execute(SQL("LOCK TABLE {} IN EXCLUSIVE MODE").format(Identifier(table.name)))
        except BaseException:
            connection.close()
            raise
        return transfer


def schema_version(url: str) -> int:
    """The version of the schema, 0 for none. Changes nothing."""
    with _start_errors(), _connect(url) as connection:
        return check_compatible(connection)


def migrate_database(url: str) -> int:
    """Create or migrate the tables; returns the version before. Several at once wait for each other."""
    with _start_errors(), _connect(url) as connection:
        return migrate(connection)


def _connect(url: str) -> Connection:
    return psycopg.connect(
        url, autocommit=True, connect_timeout=CONNECT_TIMEOUT, application_name="antwort-maintenance"
    )


@contextmanager
def _start_errors() -> Generator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise start_error(error) from error
