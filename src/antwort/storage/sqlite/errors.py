"""Translation of SQLite and OS errors into `StoreFault`."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager

from antwort.engine.stores import StoreFault
from antwort.storage.errors import os_fault

_FAULT_REASONS = {
    sqlite3.SQLITE_BUSY: "the database is locked by another process",
    sqlite3.SQLITE_LOCKED: "the database is locked",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "I/O error on the disk",
    sqlite3.SQLITE_CANTOPEN: "the database cannot be opened",
    sqlite3.SQLITE_READONLY: "the database is read-only",
    sqlite3.SQLITE_PERM: "no permission to use the database",
    sqlite3.SQLITE_PROTOCOL: "the database is locked by another process",
    sqlite3.SQLITE_NOMEM: "out of memory",
    sqlite3.SQLITE_CORRUPT: "the database is damaged",
    sqlite3.SQLITE_NOTADB: "the database is damaged",
}
"""SQLite codes with an external cause. Every other code is a programming error and is raised unchanged."""

_PRIMARY_CODE_MASK = 0xFF  # the upper bits of an extended result code are detail


def translate_error(error: Exception) -> Exception:
    """The `StoreFault` for an OS or SQLite error; any other error is returned unchanged."""
    fault: StoreFault | None = None
    if isinstance(error, OSError):
        fault = os_fault(error)
    elif isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
        reason = _FAULT_REASONS.get(code & _PRIMARY_CODE_MASK)
        fault = StoreFault(f"The store failed: {reason}.") if reason else None
    if fault is None:
        return error
    fault.__cause__ = error
    return fault


@contextmanager
def translate_errors() -> Generator[None]:
    """Raise OS and SQLite errors of the block as `StoreFault`, with their cause."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        fault = translate_error(error)
        if fault is error:
            raise
        raise fault from error
