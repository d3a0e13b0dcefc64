"""Undo log of `HostFilesystem`: an append-only log of the previous state of each changed path, for snapshots.

A snapshot is a position in the log: taking one is free, and only writes cost. Restoring undoes the changes in reverse
order and is logged like any change, so a later snapshot can be restored afterwards (redo). Entries that no live
snapshot needs are dropped. Contents of changed files are kept in one unnamed temporary file, not in memory.
"""

from __future__ import annotations

import os
import stat
import tempfile
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import IO, TypeAlias

from weakincentives.errors import FilesystemError
from weakincentives.filesystem.openat import CHUNK_BYTES, READ_FILE, write_all
from weakincentives.filesystem.paths import Parts


@dataclass(frozen=True, slots=True)
class Absent:
    """The path did not exist."""


@dataclass(frozen=True, slots=True)
class SavedFile:
    """The path was a file with this content."""

    content: Callable[[], Iterator[bytes]]
    stat_result: os.stat_result


@dataclass(frozen=True, slots=True)
class SavedDir:
    """The path was a directory; its entries are logged separately."""

    mode: int


@dataclass(frozen=True, slots=True)
class SavedLink:
    """The path was a symbolic link."""

    target: str


SavedState: TypeAlias = Absent | SavedFile | SavedDir | SavedLink


class HostSnapshot:
    """A snapshot of one `HostFilesystem`, for its `restore`. Changes are logged while it is referenced."""

    __slots__ = ("__weakref__",)


class UndoLog:
    """The log, the positions of live snapshots, and the store of file contents."""

    def __init__(self) -> None:
        self._log: list[tuple[Parts, SavedState]] = []
        self._dropped = 0  # number of entries that were removed from the start of the log
        self._positions: dict[weakref.ref[HostSnapshot], int] = {}
        self._store: IO[bytes] | None = None
        self._close_store: Callable[[], object] | None = None

    def take_snapshot(self) -> HostSnapshot:
        """A snapshot at the end of the log."""
        snapshot = HostSnapshot()
        self._positions[weakref.ref(snapshot, self._drop_snapshot)] = self._end
        return snapshot

    def record(self, parts: Parts, directory: int) -> None:
        """Log the state of the path `parts`, an entry of the descriptor `directory`, before a change."""
        if self._positions and (state := self._save(parts[-1], directory)):
            self._log.append((parts, state))

    def changes_since(self, snapshot: object) -> list[tuple[Parts, SavedState]]:
        """The previous states of the paths that changed since the snapshot, last change first."""
        position = self._position(snapshot)
        return self._log[position - self._dropped :][::-1]

    def discard_after(self, snapshot: object) -> None:
        """Drop the entries after a restored snapshot, unless later snapshots need them."""
        position = self._position(snapshot)
        if all(other <= position for other in self._positions.values()):
            del self._log[position - self._dropped :]

    @property
    def _end(self) -> int:
        return self._dropped + len(self._log)

    def _position(self, snapshot: object) -> int:
        for reference, position in self._positions.items():
            if reference() is snapshot:
                return position
        raise FilesystemError("the snapshot belongs to another filesystem", path=".")

    def _drop_snapshot(self, reference: weakref.ref[HostSnapshot]) -> None:
        del self._positions[reference]
        unneeded = min(self._positions.values(), default=self._end) - self._dropped
        del self._log[:unneeded]
        self._dropped += unneeded
        if self._close_store and not self._log:
            self._close_store()
            self._store = self._close_store = None

    def _save(self, name: str, directory: int) -> SavedState | None:
        try:
            found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return Absent()
        if stat.S_ISREG(found.st_mode):
            return SavedFile(self._store_content(name, directory), found)
        if stat.S_ISDIR(found.st_mode):
            return SavedDir(stat.S_IMODE(found.st_mode))
        if stat.S_ISLNK(found.st_mode):
            return SavedLink(os.readlink(name, dir_fd=directory))
        return None  # sockets and devices cannot be recreated

    def _store_content(self, name: str, directory: int) -> Callable[[], Iterator[bytes]]:
        """Copy the content of a file to the store; the result reads it from there."""
        if self._store is None:
            self._store = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 — closed with the log
            self._close_store = weakref.finalize(self, self._store.close)  # also if the undo log is collected first
        store = self._store.fileno()
        start = os.lseek(store, 0, os.SEEK_END)
        source = os.open(name, READ_FILE | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            while chunk := os.read(source, CHUNK_BYTES):
                write_all(store, chunk)
        finally:
            os.close(source)
        return partial(_read_range, self._store, start, os.lseek(store, 0, os.SEEK_END))


def _read_range(store: IO[bytes], start: int, end: int) -> Iterator[bytes]:
    while start < end and (chunk := os.pread(store.fileno(), min(CHUNK_BYTES, end - start), start)):
        yield chunk
        start += len(chunk)
