"""What a container's files are restored from: a directory of this machine with all whose content we know."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from weakincentives.errors import FilesystemError
from weakincentives.filesystem import HostFilesystem, HostSnapshot
from weakincentives.filesystem.paths import join, split
from weakincentives.filesystem.tar import unpack

_CHUNK = 1 << 20


class Mirror:
    """A directory that is opened, or made, when it is first needed. What a tar holds is unpacked into it then."""

    def __init__(self, root: Path | Callable[[], Path] | None, tarball: Path | None) -> None:
        self._given = root
        self._tarball = tarball
        self._own: Path | None = None
        self._files: HostFilesystem | None = None
        self.sent: set[str] = set()
        """The paths that were in the container with the content that is here."""
        self.changed: set[str] = set()
        """Those that were written here since."""

    @property
    def is_open(self) -> bool:
        return self._files is not None

    @property
    def files(self) -> HostFilesystem:
        """The directory."""
        if self._files is None:
            self._files = HostFilesystem(self._root())
            if self._tarball is not None:
                self._fill(self._files, self._tarball)
        return self._files

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

    def put(self, path: str, content: Iterable[bytes]) -> None:
        """Write a file. Code in the container may have made a file of a directory, or the other way round."""
        parts = split(path)
        for length in range(1, len(parts)):
            if self.files.is_file(join(parts[:length])):
                self.files.delete(join(parts[:length]))
        if self.files.is_dir(path):
            self.files.delete(path, recursive=True)
        self.files.write_chunks(path, content)
        self.sent.add(path)
        self.changed.add(path)

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with all that is in it."""
        if self.files.exists(path):
            self.files.delete(path, recursive=True)

    def copy(self, path: str, target: HostFilesystem) -> None:
        """Write a file to another directory."""
        with self.open_read(path) as file:
            target.write_chunks(path, iter(partial(file.read, _CHUNK), b""))

    def snapshot(self) -> HostSnapshot:
        return self.files.snapshot()

    def restore(self, snapshot: HostSnapshot) -> None:
        self.files.restore(snapshot)

    def close(self) -> None:
        """Let go of the directory; one of our own is removed."""
        self._files = None
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)
            self._own = None

    def _root(self) -> Path:
        if self._given is None:
            self._own = Path(tempfile.mkdtemp(prefix="weakincentives-container-"))
            return self._own
        return self._given() if callable(self._given) else self._given

    @staticmethod
    def _fill(files: HostFilesystem, tarball: Path) -> None:
        with tarball.open("rb") as tar:
            for member in unpack(iter(partial(tar.read, _CHUNK), b"")):
                if member.kind == "directory":
                    files.mkdir(member.name)
                elif member.kind == "file":
                    files.write_chunks(member.name, member.content)
                else:
                    message = f"{member.name!r} in {str(tarball)!r} is neither file nor directory; pack it without"
                    raise FilesystemError(message, path=member.name)
