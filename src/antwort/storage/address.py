"""The door: an address of a store, and the store that lives there."""

from __future__ import annotations

from pathlib import Path

from antwort.engine.ports import Store
from antwort.storage.faults import UnusableStore
from antwort.storage.sqlite import SqliteStore

_SQLITE = "sqlite:///"


async def open_store(url: str, blobs: Path) -> Store:
    """Open the store at `url`, with the contents of files in the directory `blobs`; what is missing is made.

    `sqlite:///antwort.db` is a file under the working directory, `sqlite:////var/lib/antwort.db` one by its full path.
    """
    path = url.removeprefix(_SQLITE)
    if path == url or path in {"", ":memory:"}:
        raise UnusableStore(f"{_scheme(url)} is not supported. Write `storage.url` as `sqlite:///path/to/antwort.db`.")
    return await SqliteStore.opened(Path(path), blobs)


def _scheme(url: str) -> str:
    """What can be shown of an address: the rest may hold a password."""
    scheme, colon, _ = url.partition("://")
    if url.startswith("sqlite:"):
        return "A store without a file"
    return f"`{scheme}://…`" if colon else "An address without a scheme"
