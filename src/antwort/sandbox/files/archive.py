"""A whole tree as one tar, in either direction: streamed, checked member by member, never following a link.

Only files and directories exist here. A member that is a link, device or FIFO is refused on the way in and left out
on the way out; permissions are reduced to "may be run or not"; owners and times of strangers mean nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO, Final

from antwort.net import tar
from antwort.sandbox.errors import BadPath, NotFound, TooLarge
from antwort.sandbox.files.tree import FileTree, parts

MOST_MEMBERS: Final = 100_000
_CHUNK: Final = 1 << 20


def unpack(tree: FileTree, source: IO[bytes], below: str, *, limit: int) -> int:
    """Write every member below the directory; answers how many. Stops at the first that is not allowed."""
    prefix = f"{'/'.join(parts(below))}/" if below else ""
    count, total = 0, 0
    for member in tar.members(source):
        count += 1
        total += member.size
        if count > MOST_MEMBERS or total > limit:
            message = f"the archive holds more than {MOST_MEMBERS} members or {limit} bytes"
            raise TooLarge(message)
        _unpack_one(tree, source, member, prefix)
    return count


def _unpack_one(tree: FileTree, source: IO[bytes], member: tar.Member, prefix: str) -> None:
    name = member.name.removeprefix("./").rstrip("/")
    if member.kind == "directory":
        if name not in {"", "."}:
            tree.make_directory(prefix + name)
        return
    if member.kind == "other":
        message = f"member {member.name!r} is neither file nor directory; only those are taken"
        raise BadPath(message)
    with tree.draft(prefix + name, 0o755 if member.executable else 0o644) as draft:
        for piece in tar.content(source, member.size):
            draft.write(piece)


def pack(tree: FileTree, sink: IO[bytes], below: str, *, limit: int) -> int:
    """Write every file and directory below as a tar; answers how many."""
    prefix = f"{'/'.join(parts(below))}/" if below else ""
    count, total = 0, 0
    listing = tree.list(below, limit=MOST_MEMBERS)
    if listing.has_more:
        message = f"the tree holds more than {MOST_MEMBERS} members"
        raise TooLarge(message)
    for entry in listing.entries:
        name = entry.path.removeprefix(prefix)
        if entry.kind == "directory":
            sink.write(tar.header(name, "directory", 0, entry.modified))
            count += 1
            continue
        try:
            descriptor, size = tree.open_read(entry.path)
        except (BadPath, NotFound):
            continue  # gone or replaced since it was listed
        try:
            total += size
            if total > limit:
                message = f"the tree holds more than {limit} bytes"
                raise TooLarge(message)
            sink.write(tar.header(name, "file", size, entry.modified))
            _copy(descriptor, size, sink)
        finally:
            os.close(descriptor)
        count += 1
    sink.write(tar.END)
    return count


def _copy(descriptor: int, size: int, sink: IO[bytes]) -> None:
    """As many bytes as the header says, with zeros for what is gone: code may cut the file while it is read."""
    left = size
    while left:
        piece = os.read(descriptor, min(left, _CHUNK)) or bytes(min(left, _CHUNK))
        sink.write(piece)
        left -= len(piece)
    sink.write(tar.padding(size))


class Feed:
    """A file to read from, fed from another thread in pieces."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""
        self._start = 0

    def read(self, size: int) -> bytes:
        while len(self._rest) - self._start < size:
            piece = next(self._pieces, None)
            if piece is None:
                break
            self._rest = self._rest[self._start :] + piece
            self._start = 0
        taken = self._rest[self._start : self._start + size]
        self._start += len(taken)  # the rest is not copied for each of many small reads
        return taken
