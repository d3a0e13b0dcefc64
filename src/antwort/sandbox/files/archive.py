"""Tar upload and download of a container's directory: streamed, checked member by member, links not followed.

Only files and directories are supported. A link, device or FIFO is refused on upload and left out of a download;
permissions are reduced to the executable bit; owners and times of an upload are ignored.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO, Final

from antwort.net import tar
from antwort.sandbox.errors import BadPath, NotFound, TooLarge
from antwort.sandbox.files.tree import FileTree, split_path

MAX_MEMBERS: Final = 100_000
_CHUNK_BYTES: Final = 1 << 20


def unpack(tree: FileTree, source: IO[bytes], below: str, *, limit: int) -> int:
    """Write every member below the directory; returns their number. Stops at the first that is not allowed."""
    prefix = f"{'/'.join(split_path(below))}/" if below else ""
    count, total = 0, 0
    for member in tar.members(source):
        count += 1
        total += member.size
        if count > MAX_MEMBERS or total > limit:
            raise TooLarge(f"the archive holds more than {MAX_MEMBERS} members or {limit} bytes")
        _unpack_one(tree, source, member, prefix)
    return count


def _unpack_one(tree: FileTree, source: IO[bytes], member: tar.Member, prefix: str) -> None:
    name = member.name.removeprefix("./").rstrip("/")
    if member.kind == "directory":
        if name not in {"", "."}:
            tree.make_directory(prefix + name)
        return
    if member.kind == "other":
        raise BadPath(f"member {member.name!r} is neither a file nor a directory")
    with tree.open_write(prefix + name, 0o755 if member.executable else 0o644) as pending:
        for chunk in tar.content(source, member.size):
            pending.write(chunk)


def pack(tree: FileTree, sink: IO[bytes], below: str, *, limit: int) -> int:
    """Write every file and directory below as a tar; returns their number."""
    prefix = f"{'/'.join(split_path(below))}/" if below else ""
    count, total = 0, 0
    listing = tree.list(below, limit=MAX_MEMBERS)
    if listing.has_more:
        raise TooLarge(f"the tree holds more than {MAX_MEMBERS} members, or very long paths")
    for entry in listing.entries:
        name = entry.path.removeprefix(prefix)
        if entry.kind == "directory":
            sink.write(tar.header(name, "directory", 0, entry.modified))
            count += 1
            continue
        try:
            descriptor, size = tree.open_read(entry.path)
        except (BadPath, NotFound):
            continue  # removed or replaced since it was listed
        try:
            total += size
            if total > limit:
                raise TooLarge(f"the tree holds more than {limit} bytes")
            sink.write(tar.header(name, "file", size, entry.modified))
            _copy(descriptor, size, sink)
        finally:
            os.close(descriptor)
        count += 1
    sink.write(tar.END)
    return count


def _copy(descriptor: int, size: int, sink: IO[bytes]) -> None:
    """Copy as many bytes as the header says, zero-padded: the code may truncate the file meanwhile."""
    left = size
    while left:
        chunk = os.read(descriptor, min(left, _CHUNK_BYTES)) or bytes(min(left, _CHUNK_BYTES))
        sink.write(chunk)
        left -= len(chunk)
    sink.write(tar.padding(size))


class ChunkReader:
    """File-like reader of an iterator of chunks, which another thread feeds."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""
        self._start = 0

    def read(self, size: int) -> bytes:
        while len(self._rest) - self._start < size:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            self._rest = self._rest[self._start :] + chunk
            self._start = 0
        taken = self._rest[self._start : self._start + size]
        self._start += len(taken)  # an offset, so that small reads do not copy the rest
        return taken
