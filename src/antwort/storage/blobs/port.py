"""Blob port: how `SqlStore` writes, reads and deletes the contents of files.

A blob belongs to the record that names it. It is complete before the record is written, and deleted after the record
is. So a record never lacks its content, and a blob without a record is either about to get one or an orphan: what a
killed process, an unreachable store or a commit of unknown outcome left. Orphans are found by `unowned`, which lists
the blobs that no upload in progress can own, and a look at their records.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from typing import Protocol, TypeAlias

from antwort.engine.stores import StoreFault

ORPHAN_AGE = 86_400.0
"""Seconds without a write after which a blob of another process is not an upload in progress any more."""


KnownBlobs: TypeAlias = Callable[[Sequence[str]], Awaitable[Collection[str]]]
"""Those of some blobs that the store has records of."""


class BlobUpload(Protocol):
    """A complete blob whose record is not committed yet."""

    @property
    def name(self) -> str:
        """Its name: random, and of the store's choosing."""
        ...

    @property
    def size(self) -> int: ...

    def check_fresh(self) -> None:
        """Raise `StoreFault` if the blob may be an orphan to others already. To be called before its record is written.

        Does not block, and is thread-safe.
        """
        ...

    async def close(self, keep: bool | None) -> None:  # noqa: FBT001 - the outcome of a commit
        """End the upload: keep the blob if its record was committed, or may have been (None); otherwise delete it."""
        ...


class BlobStore(Protocol):
    """Stores blobs. Failures of the disk or of the network raise `StoreFault`."""

    async def claim(self, store_id: str, known: KnownBlobs) -> str:
        """At start: mark the place as that of a store. `UnusableStore` if its blobs belong to another one.

        They would be orphans here. Blobs without a mark belong to the store if it knows at least one of them.
        Returns what identifies their place: equal for all processes that share them, and different for others.
        """
        ...

    async def write(self, content: AsyncIterator[bytes]) -> BlobUpload:
        """Write a blob in bounded memory. The caller must `close` the upload; on an error the blob is deleted here."""
        ...

    async def open(self, name: str) -> AsyncIterator[bytes] | None:
        """The content in chunks, or None if there is no such blob.

        If the blob is deleted meanwhile the iterator yields its whole content, or raises `StoreFault`: it never ends
        early.
        """
        ...

    async def remove(self, names: Iterable[str]) -> None:
        """Delete blobs whose records are deleted. Never fails: what remains is an orphan."""
        ...

    async def unowned(self, limit: int) -> list[str]:
        """The next blobs, among about `limit`, that no upload in progress owns, with and without a record.

        Consecutive calls go through all blobs, and then begin again.
        """
        ...

    async def aclose(self) -> None:
        """Finish running operations and close. Later calls raise `StoreFault`."""
        ...


class UploadAge:
    """How long ago a blob was written to, which decides whether others may take it for an orphan."""

    def __init__(self, orphan_age: float | None) -> None:
        self._orphan_age = orphan_age
        self._written_at = time.monotonic()

    def written(self) -> None:
        """Note a write."""
        self._written_at = time.monotonic()

    def check(self) -> None:
        """Raise `StoreFault` past half of the age: the other half is for clocks that differ and for the commit."""
        if self._orphan_age is not None and time.monotonic() - self._written_at > self._orphan_age / 2:
            raise StoreFault("The upload took too long.")
