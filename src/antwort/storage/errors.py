"""Storage errors.

StoreFault      (of the port) temporary failure of the disk or the database: retry later
UnknownCursor   (of the port) the caller's paging cursor names no item
UnusableStore   the operator's configuration: the URL or the database cannot be used; a retry does not help
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from antwort.engine.stores import StoreFault


class UnusableStore(Exception):
    """A store cannot be opened. The message names the remedy."""


def require_newest(version: int, newest: int) -> None:
    """Raise `UnusableStore` for a schema that lacks steps."""
    if version < newest:
        raise UnusableStore("The database has an older schema, or none. Run `antwort migrate` first.")


def os_fault(error: OSError) -> StoreFault:
    """The `StoreFault` for an error of the file system."""
    fault = StoreFault(f"The store failed: {error.strerror or error}.")
    fault.__cause__ = error
    return fault


@contextmanager
def translate_os_errors() -> Generator[None]:
    """Raise OS errors of the block as `StoreFault`, with their cause."""
    try:
        yield
    except OSError as error:
        raise os_fault(error) from error
