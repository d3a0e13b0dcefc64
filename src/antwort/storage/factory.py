"""Store factory: opens the store for a `storage.url`, or inspects it without opening it."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from antwort.engine.stores import Store
from antwort.storage.errors import UnusableStore
from antwort.storage.sqlite.lock import lock_holder
from antwort.storage.sqlite.migrations import check_compatible
from antwort.storage.sqlite.store import SqliteStore

_SQLITE_PREFIX = "sqlite:///"


async def open_store(url: str, blobs: Path) -> Store:
    """Open the store at `url`, with file contents in the directory `blobs`. Missing files are created.

    `sqlite:///antwort.db` is relative to the working directory, `sqlite:////var/lib/antwort.db` is absolute.
    """
    return await SqliteStore.open(_path(url), blobs)


def inspect_store(url: str, blobs: Path) -> str:
    """The state of the store, without creating or changing anything; `UnusableStore` if it could not be opened."""
    path = _path(url)
    for directory in (path.parent, blobs):
        if not _is_writable(directory):
            raise UnusableStore(f"{directory} is not writable. Change its permissions, or change `storage`.")
    if not path.exists():
        return "will be created on the first start"
    # SQLite has to read a WAL file of a running or killed process. Without one, `immutable` avoids any write.
    mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?{mode}", uri=True)) as connection:
            check_compatible(connection)
    except sqlite3.Error as error:
        raise UnusableStore(f"Cannot read {path}: {error}. Repair the file, or change `storage.url`.") from error
    holder = lock_holder(path)
    return "ok" if holder is None else f"ok, in use by {holder}"


def _is_writable(directory: Path) -> bool:
    """Whether the directory, or its nearest existing parent, is writable."""
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def _path(url: str) -> Path:
    path = url.removeprefix(_SQLITE_PREFIX)
    if path == url or path in {"", ":memory:"}:
        raise UnusableStore(f"{_scheme(url)} is not supported. Write `storage.url` as `sqlite:///path/to/antwort.db`.")
    return Path(path)


def _scheme(url: str) -> str:
    """The part of a URL that an error may show: the rest may contain a password."""
    scheme, colon, _ = url.partition("://")
    if url.startswith("sqlite:"):
        return "A store without a file"
    return f"`{scheme}://…`" if colon else "A URL without a scheme"
