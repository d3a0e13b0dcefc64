"""File spool: the files of a container whose sandbox keeps none, in a temporary directory of the server.

Callers and untrusted code choose the paths, so files are stored under numbers, and a table maps paths to numbers.
Blocking; `one_shot` calls it in threads.
"""

from __future__ import annotations

import base64
import io
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Final

from msgspec import Struct

from antwort.containers.sandboxes.path_rules import is_plain_path
from antwort.containers.sandboxes.port import SandboxFile, SandboxRefused
from antwort.net import tar
from antwort.net.errors import NetError

MAX_BYTES: Final = 40 << 20
"""Limit of all files together: they travel with every run, as base64, and sandbox servers bound a request's size."""
MAX_FILES: Final = 10_000
_CHUNK: Final = 1 << 20


class _Entry(Struct, frozen=True):
    file: SandboxFile
    location: Path


class FileSpool:
    """The files by path. `SandboxRefused` for an invalid path, and above the limits."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="antwort-files-")
        self._entries: dict[str, _Entry] = {}
        self._directories: Counter[str] = Counter()
        """The directories above the files, with the number of files below each."""
        self._bytes = 0
        self._number = 0
        self._modified = 0

    def list(self) -> list[SandboxFile]:
        return [self._entries[path].file for path in sorted(self._entries)]

    def upload(self) -> IO[bytes]:
        """A temporary file, for content that is still arriving."""
        return tempfile.TemporaryFile(dir=self._directory.name)

    def write(self, path: str, content: bytes) -> SandboxFile:
        return self.store(path, io.BytesIO(content), len(content))

    def store(self, path: str, content: IO[bytes], size: int) -> SandboxFile:
        """Write or replace a file with `size` bytes of the content."""
        self.check_path(path)
        self._check_size(path, size)
        self._number += 1
        location = Path(self._directory.name, str(self._number))
        with location.open("wb") as written:
            while chunk := content.read(_CHUNK):
                written.write(chunk)
        self._modified = max(self._modified + 1, time.time_ns())  # distinct, so that a new version is detected
        self._remove(path)
        file = SandboxFile(path, size, self._modified)
        self._entries[path] = _Entry(file, location)
        self._directories.update(_parents(path))
        self._bytes += size
        return file

    def read(self, path: str) -> Iterator[bytes]:
        """The content of a file, in chunks."""
        entry = self._entries.get(path)
        if entry is None:
            raise SandboxRefused(f"There is no file {path!r}.", "missing")
        with entry.location.open("rb") as content:
            while chunk := content.read(_CHUNK):
                yield chunk

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
        for file in self.list():
            yield tar.header(file.path, "file", file.size, file.modified / 1e9)
            yield from self.read(file.path)
            yield tar.padding(file.size)
        yield tar.END

    def encoded(self) -> Mapping[str, str]:
        """The content of all files as base64, by path."""
        return {path: base64.b64encode(entry.location.read_bytes()).decode() for path, entry in self._entries.items()}

    def close(self) -> None:
        """Delete all files."""
        self._entries.clear()
        self._directory.cleanup()

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
            entry.location.unlink(missing_ok=True)


def _parents(path: str) -> list[str]:
    """The directories above a path."""
    names = path.split("/")
    return ["/".join(names[:depth]) for depth in range(1, len(names))]
