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
from weakincentives.filesystem.openat import CHUNK, READ, write_all
from weakincentives.filesystem.paths import Parts


@dataclass(frozen=True, slots=True)
class Absent:
    """Nothing was there."""


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A file was there, and its content is kept."""

    content: Iterator[bytes]
    found: os.stat_result


@dataclass(frozen=True, slots=True)
class SavedDirectory:
    """A directory was there; what was in it has entries of its own."""

    mode: int


@dataclass(frozen=True, slots=True)
class SavedLink:
    """A symbolic link was there."""

    target: str


Before: TypeAlias = Absent | SavedFile | SavedDirectory | SavedLink


@dataclass(frozen=True, slots=True)
class _Span:
    """A file's content in the store, and what else there is to it."""

    start: int
    end: int
    found: os.stat_result


_Kept: TypeAlias = Absent | _Span | SavedDirectory | SavedLink


class HostSnapshot:
    """A moment of one `HostFilesystem`, to hand back to its `restore`. While it lives, changes are logged."""

    __slots__ = ("__weakref__",)


class Journal:
    """The log, its living snapshots, and the store of contents."""

    def __init__(self) -> None:
        self._log: list[tuple[Parts, _Kept]] = []
        self._dropped = 0  # how many entries were, before the first that the log still has
        self._marks: dict[weakref.ref[HostSnapshot], int] = {}
        self._store: IO[bytes] | None = None
        self._closing: Callable[[], object] | None = None

    def mark(self) -> HostSnapshot:
        """A snapshot of now."""
        snapshot = HostSnapshot()
        self._marks[weakref.ref(snapshot, self._forget)] = self._end
        return snapshot

    def note(self, parts: Parts, directory: int) -> None:
        """Remember how the last of `parts`, an entry of `directory`, is before it is changed."""
        if self._marks and (kept := self._keep(parts[-1], directory)):
            self._log.append((parts, kept))

    def since(self, snapshot: object) -> list[tuple[Parts, Before]]:
        """How each path changed since then was before, the last change first."""
        position = self._position(snapshot)
        return [(parts, self._saved(kept)) for parts, kept in reversed(self._log[position - self._dropped :])]

    def rewound(self, snapshot: object) -> None:
        """All of `since` has been put back: what was logged after it is of use only to later snapshots."""
        position = self._position(snapshot)
        if all(mark <= position for mark in self._marks.values()):
            del self._log[position - self._dropped :]

    @property
    def _end(self) -> int:
        return self._dropped + len(self._log)

    def _position(self, snapshot: object) -> int:
        for reference, position in self._marks.items():
            if reference() is snapshot:
                return position
        raise FilesystemError("this snapshot was taken of another filesystem", path=".")

    def _forget(self, reference: weakref.ref[HostSnapshot]) -> None:
        del self._marks[reference]
        unneeded = min(self._marks.values(), default=self._end) - self._dropped
        del self._log[:unneeded]
        self._dropped += unneeded
        if self._closing and not self._log:
            self._closing()
            self._store = self._closing = None

    def _keep(self, name: str, directory: int) -> _Kept | None:
        try:
            found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return Absent()
        if stat.S_ISREG(found.st_mode):
            start, end = self._copy_in(name, directory)
            return _Span(start, end, found)
        if stat.S_ISDIR(found.st_mode):
            return SavedDirectory(stat.S_IMODE(found.st_mode))
        if stat.S_ISLNK(found.st_mode):
            return SavedLink(os.readlink(name, dir_fd=directory))
        return None  # a socket or a device cannot be made again

    def _copy_in(self, name: str, directory: int) -> tuple[int, int]:
        if self._store is None:
            self._store = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 — lives as long as the log
            self._closing = weakref.finalize(self, self._store.close)  # whoever goes first: the journal, or its log
        store = self._store.fileno()
        start = os.lseek(store, 0, os.SEEK_END)
        source = os.open(name, READ | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            while chunk := os.read(source, CHUNK):
                write_all(store, chunk)
        finally:
            os.close(source)
        return start, os.lseek(store, 0, os.SEEK_END)

    def _saved(self, kept: _Kept) -> Before:
        if isinstance(kept, _Span):
            return SavedFile(self._copy_out(kept.start, kept.end), kept.found)
        return kept

    def _copy_out(self, start: int, end: int) -> Iterator[bytes]:
        store = self._store
        while store and start < end and (chunk := os.pread(store.fileno(), min(CHUNK, end - start), start)):
            yield chunk
            start += len(chunk)
