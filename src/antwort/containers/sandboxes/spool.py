"""File spool: the files of a container whose sandbox keeps none, in a temporary file of the server.

The temporary file has no name, so that nothing is left of it when the process ends, however it ends. New content is
appended, and a reader keeps what it has begun to read. Blocking; `one_shot` calls it in threads.
"""

from __future__ import annotations

import base64
import io
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import IO, Final

from msgspec import Struct

from antwort.containers.sandboxes.path_rules import is_plain_path
from antwort.containers.sandboxes.port import SandboxFile, SandboxRefused
from antwort.net import tar
from antwort.net.errors import NetError

MAX_BYTES: Final = 40 << 20
"""Limit of all files together: they travel with every run, as base64, and sandbox servers bound a request's size."""
MAX_FILES: Final = 10_000
_MAX_STORED_BYTES: Final = 3 * MAX_BYTES
"""With content that was replaced or deleted. Above it, the content of the files is copied to a new temporary file."""
_CHUNK: Final = 1 << 20


class _Storage:
    """A temporary file without a name, closed when nothing refers to it any more."""

    def __init__(self) -> None:
        with tempfile.TemporaryFile() as file:
            self._fd = os.dup(file.fileno())
        self.size = 0

    def append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, self.size)
            self.size += written
            view = view[written:]

    def read(self, offset: int, size: int) -> Iterator[bytes]:
        end = offset + size
        while offset < end and (chunk := os.pread(self._fd, min(_CHUNK, end - offset), offset)):
            offset += len(chunk)
            yield chunk

    def __del__(self) -> None:
        os.close(self._fd)


class _Entry(Struct, frozen=True):
    file: SandboxFile
    storage: _Storage
    offset: int

    def read(self) -> Iterator[bytes]:
        return self.storage.read(self.offset, self.file.size)


class FileSpool:
    """The files by path. `SandboxRefused` for an invalid path, and above the limits."""

    def __init__(self) -> None:
        self._storage = _Storage()
        self._entries: dict[str, _Entry] = {}
        self._directories: Counter[str] = Counter()
        """The directories above the files, with the number of files below each."""
        self._bytes = 0
        self._modified = 0

    def list(self) -> list[SandboxFile]:
        return [self._entries[path].file for path in sorted(self._entries)]

    def upload(self) -> IO[bytes]:
        """A temporary file, for content that is still arriving."""
        return tempfile.TemporaryFile()

    def write(self, path: str, content: bytes) -> SandboxFile:
        return self.store(path, io.BytesIO(content), len(content))

    def store(self, path: str, content: IO[bytes], size: int) -> SandboxFile:
        """Write or replace a file with `size` bytes of the content."""
        self.check_path(path)
        self._check_size(path, size)
        if self._storage.size + size > _MAX_STORED_BYTES:
            self._rewrite()
        storage, offset = self._storage, self._storage.size
        while chunk := content.read(_CHUNK):
            storage.append(chunk)
        self._modified = max(self._modified + 1, time.time_ns())  # distinct, so that a new version is detected
        self._remove(path)
        file = SandboxFile(path, size, self._modified)
        self._entries[path] = _Entry(file, storage, offset)
        self._directories.update(_parents(path))
        self._bytes += size
        return file

    def _rewrite(self) -> None:
        """Copy the content of the files to a new temporary file. Readers keep the one before."""
        storage = _Storage()
        for path, entry in self._entries.items():
            offset = storage.size
            for chunk in entry.read():
                storage.append(chunk)
            self._entries[path] = _Entry(entry.file, storage, offset)
        self._storage = storage

    def read(self, path: str) -> Iterator[bytes]:
        """The content of a file, in chunks."""
        entry = self._entries.get(path)
        if entry is None:
            raise SandboxRefused(f"There is no file {path!r}.", "missing")
        return entry.read()

    def delete(self, path: str) -> bool:
        """Delete a file, or all files below a directory; whether there was one."""
        below = [name for name in self._entries if name == path or name.startswith(f"{path}/")]
        for name in below:
            self._remove(name)
        return bool(below)

    def unpack(self, archive: IO[bytes]) -> None:
        """Extract a tar archive."""
        try:
            for member in tar.members(archive):
                if member.kind == "directory":
                    continue
                name = member.name.removeprefix("./")
                if member.kind != "file":
                    raise SandboxRefused(f"{name!r} is neither a file nor a directory.", "path")
                self.check_path(name)
                self._check_size(name, member.size)
                self.write(name, b"".join(tar.content(archive, member.size)))
        except NetError as error:
            raise SandboxRefused(str(error), "path") from error

    def pack(self) -> Iterator[bytes]:
        """All files as one tar archive."""
        for _, entry in sorted(self._entries.items()):  # a copy: files may be changed meanwhile
            file = entry.file
            yield tar.header(file.path, "file", file.size, file.modified / 1e9)
            yield from entry.read()
            yield tar.padding(file.size)
        yield tar.END

    def encoded(self) -> Mapping[str, str]:
        """The content of all files as base64, by path."""
        return {path: base64.b64encode(b"".join(entry.read())).decode() for path, entry in self._entries.items()}

    def close(self) -> None:
        """Delete all files."""
        self._entries.clear()
        self._directories.clear()
        self._bytes, self._storage = 0, _Storage()

    def check_path(self, path: str) -> None:
        """Raise `SandboxRefused` for a path outside of the directory, or one that collides with another file."""
        if not is_plain_path(path) or any(parent in self._entries for parent in _parents(path)):
            raise SandboxRefused(f"{path!r} is not a plain path below /mnt/data.", "path")
        if path in self._directories:
            raise SandboxRefused(f"{path!r} is a directory with files.", "path")

    def _check_size(self, path: str, size: int) -> None:
        replaced = self._entries.get(path)
        others = self._bytes - (replaced.file.size if replaced else 0)
        if (replaced is None and len(self._entries) >= MAX_FILES) or others + size > MAX_BYTES:
            raise SandboxRefused(
                f"With {path!r} the files of this container exceed {MAX_FILES} files or {MAX_BYTES >> 20} MiB, which "
                "this sandbox server takes with one run.",
                "size",
            )

    def _remove(self, path: str) -> None:
        entry = self._entries.pop(path, None)
        if entry is not None:
            self._bytes -= entry.file.size
            for parent in _parents(path):
                self._directories[parent] -= 1
                if not self._directories[parent]:
                    del self._directories[parent]


def _parents(path: str) -> list[str]:
    """The directories above a path."""
    names = path.split("/")
    return ["/".join(names[:depth]) for depth in range(1, len(names))]
