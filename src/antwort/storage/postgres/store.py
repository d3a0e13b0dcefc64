"""PostgresStore: the store of one or several server processes, in PostgreSQL and a directory or an object store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

from antwort.engine.stores import StoreFault
from antwort.storage.blobs import ORPHAN_AGE, BlobStore, DirectoryBlobs
from antwort.storage.errors import UnusableStore
from antwort.storage.postgres.database import PostgresDatabase
from antwort.storage.postgres.errors import translate_error
from antwort.storage.postgres.migrations import (
    SCHEMA_LOCK,
    Connection,
    check_compatible,
    exclusive_use_error,
    migrate,
)
from antwort.storage.postgres.replicas import PostgresReplicas
from antwort.storage.sql.store import SqlStore

CONNECT_TIMEOUT = 5


class PostgresStore(SqlStore):
    """A `Store`, created by `open`. Several processes may have it open at a time."""

    def __init__(
        self,
        database: PostgresDatabase,
        blobs: BlobStore,
        replicas: PostgresReplicas,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(database, blobs, clock)
        self._replicas = replicas

    @property
    def replicas(self) -> PostgresReplicas:
        return self._replicas

    @classmethod
    async def open(
        cls,
        url: str,
        blobs: Path | BlobStore,
        *,
        orphan_age: float = ORPHAN_AGE,
        clock: Callable[[], float] = time.time,
    ) -> PostgresStore:
        """Connect, and run migrations. A directory of blobs is created; other servers may use it too.

        `StoreFault` if the server does not answer, `UnusableStore` for a URL or a schema that cannot be used.
        """
        store = await asyncio.to_thread(cls._open_blocking, url, blobs, orphan_age, clock)
        try:
            store.replicas.blob_location = await store.claim_blobs()
        except BaseException:
            await store.aclose()
            raise
        return store

    @classmethod
    def _open_blocking(
        cls, url: str, place: Path | BlobStore, orphan_age: float, clock: Callable[[], float]
    ) -> PostgresStore:
        try:
            is_directory = isinstance(place, Path)
            blobs = DirectoryBlobs(place, is_shared=True, orphan_age=orphan_age) if is_directory else place
        except OSError as error:
            raise UnusableStore(f"The store cannot be opened: {error}. Fix that, or change `storage`.") from error
        try:
            with psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_TIMEOUT) as connection:
                migrate(connection)
                share_schema(connection)  # until the connection of the beats has the same lock
                database = PostgresDatabase(url)
                replicas = PostgresReplicas(url, database, clock)
                try:
                    replicas.connect()
                except BaseException:
                    replicas.close()
                    database.close()
                    raise
        except psycopg.Error as error:
            raise start_error(error) from error
        return cls(database, blobs, replicas, clock)

    async def aclose(self) -> None:
        """Wait for running operations, and close the connections."""
        await super().aclose()
        await self._replicas.aclose()


def lock_schema(connection: Connection) -> None:
    """Have the schema alone for the life of the connection; `UnusableStore` while a server or an import uses it.

    Waits a moment: PostgreSQL ends the connections of a process that was stopped just now a little later.
    """
    try:
        connection.execute("SET lock_timeout = '2s'")
        connection.execute(f"SELECT pg_advisory_lock({SCHEMA_LOCK})")
        connection.execute("SET lock_timeout = 0")
    except psycopg.errors.LockNotAvailable as error:
        raise UnusableStore(
            "The database of `storage.url` is in use by another antwort. Stop that server, or wait for that import; or "
            "set `storage.url` to another database."
        ) from error


def share_schema(connection: Connection) -> None:
    """Keep imports out for the life of the connection; `UnusableStore` while one runs.

    Waits longer than `lock_schema`: for an import that is about to be refused, because other servers run.
    """
    try:
        connection.execute("SET lock_timeout = '3s'")
        connection.execute(f"SELECT pg_advisory_lock_shared({SCHEMA_LOCK})")
        connection.execute("SET lock_timeout = 0")
    except psycopg.errors.LockNotAvailable as error:
        raise exclusive_use_error() from error


def inspect_postgres(url: str) -> str:
    """The state of the database, without a change; `UnusableStore` if it could not be used."""
    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_TIMEOUT) as connection:
            version = check_compatible(connection)
    except psycopg.Error as error:
        raise UnusableStore(f"{start_error(error)} Start PostgreSQL, or change `storage.url`.") from error
    return "ok" if version else "will be created on the first start"


def start_error(error: psycopg.Error) -> Exception:
    """The error of a failed start. Not psycopg's text, which may show parts of the URL."""
    if isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None:
        return UnusableStore("`storage.url` is not a valid PostgreSQL URL. Write `postgresql://user@host/database`.")
    fault = translate_error(error)
    return StoreFault("The store failed: PostgreSQL cannot be used.") if fault is error else fault
