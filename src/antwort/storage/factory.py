"""Store factory: opens the store for a `storage.url`, or inspects it without opening it."""

from __future__ import annotations

import asyncio
import importlib
import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import ModuleType
from urllib.parse import quote

from antwort.config import ObjectStoreSettings, is_object_store
from antwort.engine.stores import Store
from antwort.extras import explain_missing
from antwort.storage.blobs import ORPHAN_AGE, BlobStore
from antwort.storage.errors import UnusableStore
from antwort.storage.sqlite.lock import lock_holder
from antwort.storage.sqlite.migrations import check_compatible
from antwort.storage.sqlite.store import SqliteStore

_SQLITE_PREFIX = "sqlite:///"
_POSTGRES_PREFIXES = ("postgresql://", "postgres://")


async def open_store(
    url: str,
    blobs: Path | str,
    *,
    object_store: ObjectStoreSettings | None = None,
    orphan_age: float = ORPHAN_AGE,
    environment: Mapping[str, str] = os.environ,
) -> Store:
    """Open the store at `url`, with file contents in `blobs`: a directory, or the URL of an object store.

    Missing files are created.
    `sqlite:///antwort.db` is relative to the working directory, `sqlite:////var/lib/antwort.db` is absolute.
    `postgresql://user:password@host/database` is a PostgreSQL database, which needs the extra `postgres`.
    """
    place = await asyncio.to_thread(open_blobs, blobs, object_store, orphan_age, environment)
    if is_postgres(url):
        postgres = await asyncio.to_thread(load_postgres)  # the import reads files
        return await postgres.PostgresStore.open(url, place, orphan_age=orphan_age)
    return await SqliteStore.open(sqlite_path(url), place)


def open_blobs(
    blobs: Path | str,
    settings: ObjectStoreSettings | None = None,
    orphan_age: float = ORPHAN_AGE,
    environment: Mapping[str, str] = os.environ,
) -> Path | BlobStore:
    """The blobs of an object store; or the path of a directory, which the store opens. Reads files."""
    if isinstance(blobs, Path) or not is_object_store(blobs):
        return Path(blobs)
    try:
        clients = importlib.import_module("antwort.storage.objects.clients")
        objects = importlib.import_module("antwort.storage.objects.blobs")
    except ModuleNotFoundError as error:
        raise UnusableStore(f"An object store as `storage.blobs` {explain_missing(error, 'objectstore')}") from error
    client = clients.open_client(blobs, settings or ObjectStoreSettings(), environment)
    return objects.ObjectStoreBlobs(client, blobs, orphan_age=orphan_age)


def is_postgres(url: str) -> bool:
    """Whether a `storage.url` is that of a PostgreSQL database."""
    return url.startswith(_POSTGRES_PREFIXES)


def display_url(url: str) -> str:
    """A `storage.url` without its password and its options, for messages and logs."""
    if not is_postgres(url):
        return url.partition("?")[0]
    scheme, _, rest = url.partition("?")[0].partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def load_postgres(module: str = "store") -> ModuleType:
    """A module of the package for PostgreSQL; `UnusableStore` without its extra."""
    try:
        return importlib.import_module(f"antwort.storage.postgres.{module}")
    except ModuleNotFoundError as error:
        raise UnusableStore(f"A PostgreSQL `storage.url` {explain_missing(error, 'postgres')}") from error


def inspect_store(url: str, blobs: Path | str, object_store: ObjectStoreSettings | None = None) -> str:
    """The state of the store, without creating or changing anything; `UnusableStore` if it could not be opened."""
    place = open_blobs(blobs, object_store)
    directories = [place] if isinstance(place, Path) else []
    if is_postgres(url):
        _require_writable(*directories)
        return load_postgres().inspect_postgres(url)
    path = sqlite_path(url)
    _require_writable(path.parent, *directories)
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


def _require_writable(*directories: Path) -> None:
    for directory in directories:
        if not _is_writable(directory):
            raise UnusableStore(f"{directory} is not writable. Change its permissions, or change `storage`.")


def _is_writable(directory: Path) -> bool:
    """Whether the directory, or its nearest existing parent, is writable."""
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def sqlite_path(url: str) -> Path:
    """The file of an SQLite `storage.url`; `UnusableStore` for a URL of neither kind."""
    path = url.removeprefix(_SQLITE_PREFIX)
    if path == url or path in {"", ":memory:"}:
        raise UnusableStore(
            f"{_scheme(url)} is not supported. Write `storage.url` as `sqlite:///path/to/antwort.db` or "
            "`postgresql://user@host/database`."
        )
    return Path(path)


def _scheme(url: str) -> str:
    """The part of a URL that an error may show: the rest may contain a password."""
    scheme, colon, _ = url.partition("://")
    if url.startswith("sqlite:"):
        return "A store without a file"
    return f"`{scheme}://…`" if colon else "A URL without a scheme"
