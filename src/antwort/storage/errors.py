"""Errors of the storage room, and whose fault they are.

StoreFault      (a port's) the disk or the database, for now: try again later
UnknownCursor   (a port's) the caller asked for what follows an item that is not there
UnusableStore   the operator's: this address, or what is there, cannot be used; trying again does not help
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager

from antwort.engine.stores import StoreFault


class UnusableStore(Exception):
    """A store cannot be opened. The message says what to do."""


_PASSING = {
    sqlite3.SQLITE_BUSY: "the database is locked by another process",
    sqlite3.SQLITE_LOCKED: "the database is locked",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk does not read or write",
    sqlite3.SQLITE_CANTOPEN: "the database cannot be opened",
    sqlite3.SQLITE_READONLY: "the database cannot be written to",
    sqlite3.SQLITE_PERM: "the database may not be used",
    sqlite3.SQLITE_PROTOCOL: "the database is locked by another process",
    sqlite3.SQLITE_NOMEM: "there is no memory left for the database",
    sqlite3.SQLITE_CORRUPT: "the database is damaged",
    sqlite3.SQLITE_NOTADB: "the database is damaged",
}
"""What the world can do to a database. Every other code of SQLite is a mistake of ours and is raised as it is."""

_PRIMARY = 0xFF  # the rest of an extended code is detail


def fault_of(error: Exception) -> Exception:
    """What the outside is told of an error: a `StoreFault`, or the error itself where that is a mistake of ours."""
    told: Exception | None = None
    if isinstance(error, OSError):
        told = StoreFault(f"The store failed: {error.strerror or error}.")
    elif isinstance(error, sqlite3.Error):
        reason = _PASSING.get(error.sqlite_errorcode & _PRIMARY) if hasattr(error, "sqlite_errorcode") else None
        told = StoreFault(f"The store failed: {reason}.") if reason else None
    if told is None:
        return error
    told.__cause__ = error
    return told


@contextmanager
def faults_told() -> Generator[None]:
    """What disk and database raise inside leaves as a `StoreFault`, with its cause."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        told = fault_of(error)
        if told is error:
            raise
        raise told from error
