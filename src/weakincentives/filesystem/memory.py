"""`InMemoryFilesystem`: files in memory, with copy-on-write snapshots.

Snapshots share directories with the live tree. Each directory has the epoch in which it was created; a snapshot starts
a new epoch, and a directory of an older epoch is copied before it is changed. So a snapshot is O(1), and the next write
copies only the directories on its path.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import NoReturn, TypeAlias

from weakincentives.clock import SYSTEM_CLOCK, Clock
from weakincentives.errors import FilesystemError
from weakincentives.filesystem.base import FilesystemBase
from weakincentives.filesystem.errors import missing_file, not_a_directory, not_a_file, not_empty, root_not_deletable
from weakincentives.filesystem.paths import Parts, join, split
from weakincentives.filesystem.protocol import FileStat


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    modified_at: datetime


@dataclass(slots=True)
class _Directory:
    epoch: object
    modified_at: datetime
    children: dict[str, _Node] = field(default_factory=dict[str, "_Node"])


_Node: TypeAlias = _File | _Directory


@dataclass(frozen=True, slots=True, eq=False)
class MemorySnapshot:
    """A snapshot of one `InMemoryFilesystem`, for its `restore`."""

    owner: InMemoryFilesystem
    root: _Directory = field(repr=False)


class InMemoryFilesystem(FilesystemBase):
    """A `Filesystem` in memory, initially empty.

    >>> files = InMemoryFilesystem()
    >>> files.write_text("notes/today.md", "rain")
    >>> files.glob("**/*.md")
    ['notes/today.md']
    """

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._epoch = object()
        self._root = _Directory(self._epoch, clock.now())

    def read_bytes(self, path: str) -> bytes:
        node = self._find(path)
        if isinstance(node, _Directory):
            raise not_a_file(path)
        return node.content

    def write_bytes(self, path: str, content: bytes) -> None:
        parts = split(path)
        if not parts:
            raise not_a_file(path)
        self._check_parents(path, parts[:-1])
        if isinstance(self._look_up(parts), _Directory):
            raise not_a_file(path)
        now = self._clock.now()
        directory = self._writable_directory(parts[:-1])
        directory.children[parts[-1]] = _File(bytes(content), now)
        directory.modified_at = now

    def stat(self, path: str) -> FileStat:
        node = self._find(path)
        is_dir = isinstance(node, _Directory)
        return FileStat(join(split(path)), 0 if is_dir else len(node.content), is_dir, node.modified_at)

    def list_dir(self, path: str = ".") -> list[str]:
        node = self._find(path)
        if not isinstance(node, _Directory):
            raise not_a_directory(path)
        return sorted(node.children)

    def mkdir(self, path: str) -> None:
        parts = split(path)
        self._check_parents(path, parts)
        if self._look_up(parts) is None:
            self._writable_directory(parts)

    def delete(self, path: str, *, recursive: bool = False) -> None:
        parts = split(path)
        if not parts:
            raise root_not_deletable(path)
        node = self._find(path)
        if isinstance(node, _Directory) and node.children and not recursive:
            raise not_empty(path)
        directory = self._writable_directory(parts[:-1])
        del directory.children[parts[-1]]
        directory.modified_at = self._clock.now()

    def snapshot(self) -> MemorySnapshot:
        """A snapshot, in O(1)."""
        self._epoch = object()
        return MemorySnapshot(self, self._root)

    def restore(self, snapshot: object, /) -> None:
        """Restore an earlier or later snapshot of this filesystem."""
        if not (isinstance(snapshot, MemorySnapshot) and snapshot.owner is self):
            raise FilesystemError("the snapshot belongs to another filesystem", path=".")
        self._epoch = object()
        self._root = snapshot.root

    def _look_up(self, parts: Parts) -> _Node | None:
        node: _Node | None = self._root
        for part in parts:
            if not isinstance(node, _Directory):
                return None
            node = node.children.get(part)
        return node

    def _find(self, path: str) -> _Node:
        parts = split(path)
        return self._look_up(parts) or self._raise_missing(path, parts)

    def _raise_missing(self, path: str, parts: Parts) -> NoReturn:
        self._check_parents(path, parts[:-1])
        raise missing_file(path)

    def _check_parents(self, path: str, parts: Parts) -> None:
        """Raise if one of the parent directories `parts` of `path` is a file."""
        for length in range(1, len(parts) + 1):
            if isinstance(self._look_up(parts[:length]), _File):
                raise not_a_directory(path, component=join(parts[:length]))

    def _writable_directory(self, parts: Parts) -> _Directory:
        """The directory at `parts`, created if missing; it and its parents belong to this epoch and may be changed."""
        self._root = current = self._copy_on_write(self._root)
        for part in parts:
            child = current.children.get(part)
            if isinstance(child, _Directory):
                child = self._copy_on_write(child)
            else:
                child = _Directory(self._epoch, self._clock.now())
                current.modified_at = child.modified_at
            current.children[part] = child
            current = child
        return current

    def _copy_on_write(self, directory: _Directory) -> _Directory:
        if directory.epoch is self._epoch:
            return directory
        return _Directory(self._epoch, directory.modified_at, dict(directory.children))
