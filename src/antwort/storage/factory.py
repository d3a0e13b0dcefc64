"""The door: an address of a store, and the store that lives there; or only a look at it from outside."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from antwort.engine.stores import Store
from antwort.storage.errors import UnusableStore
from antwort.storage.sqlite.lock import holder
from antwort.storage.sqlite.migrations import refuse_strangers
from antwort.storage.sqlite.store import SqliteStore

_SQLITE = "sqlite:///"


async def open_store(url: str, blobs: Path) -> Store:
    """Open the store at `url`, with the contents of files in the directory `blobs`; what is missing is made.

    `sqlite:///antwort.db` is a file under the working directory, `sqlite:////var/lib/antwort.db` one by its full path.
    """
    return await SqliteStore.opened(_path(url), blobs)


def look_at_store(url: str, blobs: Path) -> str:
    """What opening it would find. Makes and changes nothing; `UnusableStore` where it could not be opened."""
    path = _path(url)
    for place in (path.parent, blobs):
        if not _can_be_used(place):
            raise UnusableStore(f"{place} cannot be written to. Mend that, or change `storage`.")
    if not path.exists():
        return "made on the first start"
    # With a WAL there is somebody, or was: then SQLite has to look at that too. Without, it need not write a byte.
    mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?{mode}", uri=True)) as connection:
            refuse_strangers(connection)
    except sqlite3.Error as error:
        raise UnusableStore(f"{path} cannot be read: {error}. Mend that, or change `storage.url`.") from error
    user = holder(path)
    return "ok" if user is None else f"ok, in use by {user}"


def _can_be_used(folder: Path) -> bool:
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _path(url: str) -> Path:
    path = url.removeprefix(_SQLITE)
    if path == url or path in {"", ":memory:"}:
        raise UnusableStore(f"{_scheme(url)} is not supported. Write `storage.url` as `sqlite:///path/to/antwort.db`.")
    return Path(path)


def _scheme(url: str) -> str:
    """What can be shown of an address: the rest may hold a password."""
    scheme, colon, _ = url.partition("://")
    if url.startswith("sqlite:"):
        return "A store without a file"
    return f"`{scheme}://…`" if colon else "An address without a scheme"
