"""`Mirror`: host directory with the known content of a container's files, from which a container is restored."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from weakincentives.errors import FilesystemError
from weakincentives.filesystem import HostFilesystem
from weakincentives.filesystem.paths import join, split
from weakincentives.filesystem.tar import unpack

_CHUNK_BYTES = 1 << 20


class Mirror:
    """A directory that is opened, or created, on first use; a tarball is unpacked into it then."""

    def __init__(self, root: Path | Callable[[], Path] | None, tarball: Path | None) -> None:
        self._root = root
        self._tarball = tarball
        self._temporary: Path | None = None
        self._files: HostFilesystem | None = None
        self.uploaded: set[str] = set()
        """Paths that were in the container with the content of the mirror."""
        self.changed: set[str] = set()
        """Paths that were written since the mirror was opened."""

    @property
    def is_open(self) -> bool:
        return self._files is not None

    @property
    def files(self) -> HostFilesystem:
        """The directory as a filesystem. Opens it."""
        return self.open()

    def open(self) -> HostFilesystem:
        """Open or create the directory."""
        if self._files is None:
            if self._root is None:
                root = self._temporary = Path(tempfile.mkdtemp(prefix="weakincentives-container-"))
            else:
                root = self._root() if callable(self._root) else self._root
            self._files = HostFilesystem(root)
            if self._tarball is not None:
                _unpack_tarball(self._tarball, self._files)
        return self._files

    def close(self) -> None:
        """Close the directory; a temporary one is removed."""
        self._files = None
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def open_read(self, path: str) -> BinaryIO:
        return self.files.open_read(path)

    def listing(self) -> tuple[list[tuple[str, int]], list[str]]:
        """Every file with its size, and every directory."""
        files: list[tuple[str, int]] = []
        directories: list[str] = []
        for directory, names, _ in self.files.walk():
            files += [(found.path, found.size) for found in self.files.scan(directory) if found.is_file]
            directories += [join((*split(directory), name)) for name in names]
        return files, directories

    def files_at(self, path: str) -> Iterator[str]:
        """The file at a path, or all files below it."""
        if self.files.is_file(path):
            yield path
        elif self.files.is_dir(path):
            for directory, _, names in self.files.walk(path):
                yield from (join((*split(directory), name)) for name in names)

    def write(self, path: str, content: Iterable[bytes]) -> None:
        """Write a file, replacing a directory at its path, or files at its parent directories.

        Code in the container may have replaced one kind by the other.
        """
        parts = split(path)
        for length in range(1, len(parts)):
            if self.files.is_file(join(parts[:length])):
                self.files.delete(join(parts[:length]))
        if self.files.is_dir(path):
            self.files.delete(path, recursive=True)
        self.files.write_chunks(path, content)
        self.uploaded.add(path)
        self.changed.add(path)

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with its content, if it exists."""
        if self.files.exists(path):
            self.files.delete(path, recursive=True)

    def copy_to(self, target: HostFilesystem, path: str) -> None:
        """Copy a file to another directory."""
        with self.open_read(path) as file:
            target.write_chunks(path, iter(partial(file.read, _CHUNK_BYTES), b""))


def _unpack_tarball(tarball: Path, files: HostFilesystem) -> None:
    with tarball.open("rb") as tar:
        for member in unpack(iter(partial(tar.read, _CHUNK_BYTES), b"")):
            if member.kind == "directory":
                files.mkdir(member.name)
            elif member.kind == "file":
                files.write_chunks(member.name, member.content)
            else:
                message = f"{member.name!r} in {str(tarball)!r} is neither a file nor a directory; leave it out"
                raise FilesystemError(message, path=member.name)
