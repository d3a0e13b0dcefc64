"""SqliteStore: the store of one process, in one SQLite file, with blobs in a directory or an object store."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from antwort.storage.blobs import BlobStore, DirectoryBlobs
from antwort.storage.errors import UnusableStore
from antwort.storage.sql.store import SqlStore
from antwort.storage.sqlite.database import SqliteDatabase, connect
from antwort.storage.sqlite.errors import translate_errors
from antwort.storage.sqlite.lock import StoreLock
from antwort.storage.sqlite.migrations import check_compatible, migrate

LOCK_TIMEOUT = 5.0
"""Seconds to wait for a database lock of another process."""


class SqliteStore(SqlStore):
    """A `Store`, created by `open`."""

    def __init__(self, database: SqliteDatabase, blobs: BlobStore, lock: StoreLock, clock: Callable[[], float]) -> None:
        super().__init__(database, blobs, clock)
        self._lock = lock

    @classmethod
    async def open(
        cls,
        path: Path,
        blobs: Path | BlobStore,
        *,
        lock_timeout: float = LOCK_TIMEOUT,
        clock: Callable[[], float] = time.time,
    ) -> SqliteStore:
        """Open or create the database, and run migrations. A directory of blobs is created and locked too.

        Raises `UnusableStore` if another process has the store open.
        """
        store = await asyncio.to_thread(cls._open_blocking, path, blobs, lock_timeout, clock)
        try:
            await store.claim_blobs()
        except BaseException:
            await store.aclose()
            raise
        return store

    @classmethod
    def _open_blocking(
        cls, path: Path, place: Path | BlobStore, lock_timeout: float, clock: Callable[[], float]
    ) -> SqliteStore:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite gives its other files the same permissions
            blobs = DirectoryBlobs(place) if isinstance(place, Path) else place
            with translate_errors(), closing(sqlite3.connect(path, timeout=lock_timeout)) as connection:
                check_compatible(connection)  # before creating any file beside it
            lock = StoreLock(path, place if isinstance(place, Path) else None)
        except OSError as error:
            raise UnusableStore(f"The store cannot be opened: {error}. Fix that, or change `storage`.") from error
        try:
            with translate_errors():
                with closing(connect(path, lock_timeout)) as connection:
                    migrate(connection)
                return cls(SqliteDatabase(path, lock_timeout=lock_timeout), blobs, lock, clock)
        except BaseException:
            lock.release()
            raise

    async def aclose(self) -> None:
        """Wait for running operations, close the files, and release the lock."""
        await super().aclose()
        self._lock.release()
