"""What `HostFilesystem` must know to undo its changes: an append-only log of how each changed path was before.

A snapshot is a position in the log, so it costs nothing until something is changed, and reading never costs anything.
Going back puts the paths as they were, last change first, and is itself logged like any change; that is why one can
also go forward again to a later snapshot. What no living snapshot needs is dropped. The contents of changed files wait
in one unnamed temporary file, not in memory.
"""

from __future__ import annotations

import os
import stat
import tempfile
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, TypeAlias

from weakincentives.errors import FilesystemError
from weakincentives.filesystem.openat import CHUNK_BYTES, READ_FILE, write_all
from weakincentives.filesystem.paths import Parts


@dataclass(frozen=True, slots=True)
class Absent:
    """Nothing was there."""


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A file was there, and its content is kept."""

    content: Iterator[bytes]
    stat_result: os.stat_result


@dataclass(frozen=True, slots=True)
class SavedDirectory:
    """A directory was there; what was in it has entries of its own."""

    mode: int


@dataclass(frozen=True, slots=True)
class SavedLink:
    """A symbolic link was there."""

    target: str


PreviousState: TypeAlias = Absent | SavedFile | SavedDirectory | SavedLink


@dataclass(frozen=True, slots=True)
class _StoredFile:
    """A file's content in the store, and what else there is to it."""

    start: int
    end: int
    stat_result: os.stat_result


_StoredState: TypeAlias = Absent | _StoredFile | SavedDirectory | SavedLink


class HostSnapshot:
    """A moment of one `HostFilesystem`, to hand back to its `restore`. While it lives, changes are logged."""

    __slots__ = ("__weakref__",)


class UndoLog:
    """The log, its living snapshots, and the store of contents."""

    def __init__(self) -> None:
        self._log: list[tuple[Parts, _StoredState]] = []
        self._dropped = 0  # how many entries were, before the first that the log still has
        self._positions: dict[weakref.ref[HostSnapshot], int] = {}
        self._store: IO[bytes] | None = None
        self._close_store: Callable[[], object] | None = None

    def take_snapshot(self) -> HostSnapshot:
        """A snapshot of now."""
        snapshot = HostSnapshot()
        self._positions[weakref.ref(snapshot, self._drop_snapshot)] = self._end
        return snapshot

    def record(self, parts: Parts, directory: int) -> None:
        """Remember how the last of `parts`, an entry of `directory`, is before it is changed."""
        if self._positions and (kept := self._save(parts[-1], directory)):
            self._log.append((parts, kept))

    def changes_since(self, snapshot: object) -> list[tuple[Parts, PreviousState]]:
        """How each path changed since then was before, the last change first."""
        position = self._position(snapshot)
        return [(parts, self._load(kept)) for parts, kept in reversed(self._log[position - self._dropped :])]

    def discard_after(self, snapshot: object) -> None:
        """All of `since` has been put back: what was logged after it is of use only to later snapshots."""
        position = self._position(snapshot)
        if all(mark <= position for mark in self._positions.values()):
            del self._log[position - self._dropped :]

    @property
    def _end(self) -> int:
        return self._dropped + len(self._log)

    def _position(self, snapshot: object) -> int:
        for reference, position in self._positions.items():
            if reference() is snapshot:
                return position
        raise FilesystemError("this snapshot was taken of another filesystem", path=".")

    def _drop_snapshot(self, reference: weakref.ref[HostSnapshot]) -> None:
        del self._positions[reference]
        unneeded = min(self._positions.values(), default=self._end) - self._dropped
        del self._log[:unneeded]
        self._dropped += unneeded
        if self._close_store and not self._log:
            self._close_store()
            self._store = self._close_store = None

    def _save(self, name: str, directory: int) -> _StoredState | None:
        try:
            found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return Absent()
        if stat.S_ISREG(found.st_mode):
            start, end = self._store_content(name, directory)
            return _StoredFile(start, end, found)
        if stat.S_ISDIR(found.st_mode):
            return SavedDirectory(stat.S_IMODE(found.st_mode))
        if stat.S_ISLNK(found.st_mode):
            return SavedLink(os.readlink(name, dir_fd=directory))
        return None  # a socket or a device cannot be made again

    def _store_content(self, name: str, directory: int) -> tuple[int, int]:
        if self._store is None:
            self._store = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 — lives as long as the log
            self._close_store = weakref.finalize(self, self._store.close)  # whoever goes first: the journal, or its log
        store = self._store.fileno()
        start = os.lseek(store, 0, os.SEEK_END)
        source = os.open(name, READ_FILE | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            while chunk := os.read(source, CHUNK_BYTES):
                write_all(store, chunk)
        finally:
            os.close(source)
        return start, os.lseek(store, 0, os.SEEK_END)

    def _load(self, kept: _StoredState) -> PreviousState:
        if isinstance(kept, _StoredFile):
            return SavedFile(self._read_content(kept.start, kept.end), kept.stat_result)
        return kept

    def _read_content(self, start: int, end: int) -> Iterator[bytes]:
        store = self._store
        while store and start < end and (chunk := os.pread(store.fileno(), min(CHUNK_BYTES, end - start), start)):
            yield chunk
            start += len(chunk)
