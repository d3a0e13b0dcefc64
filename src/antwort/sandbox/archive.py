"""A whole tree as one tar, in either direction: streamed, checked member by member, never following a link.

Only files and directories exist here. A member that is a link, device or FIFO is refused on the way in and left out
on the way out; permissions are reduced to "may be run or not"; owners and times of strangers mean nothing.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from typing import IO, Final

from . import tar
from .errors import BadPath, NotFound, TooLarge
from .files import Tree, parts

MOST_MEMBERS: Final = 100_000


def unpack(tree: Tree, source: IO[bytes], below: str, *, limit: int) -> int:
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


def _unpack_one(tree: Tree, source: IO[bytes], member: tar.Member, prefix: str) -> None:
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


def pack(tree: Tree, sink: IO[bytes], below: str, *, limit: int) -> int:
    """Write every file and directory below as a tar; answers how many."""
    prefix = f"{'/'.join(parts(below))}/" if below else ""
    count, total = 0, 0
    with tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        listing = tree.list(below, limit=MOST_MEMBERS)
        if listing.has_more:
            message = f"the tree holds more than {MOST_MEMBERS} members"
            raise TooLarge(message)
        for entry in listing.entries:
            member = tarfile.TarInfo(entry.path.removeprefix(prefix))
            member.mtime = int(entry.modified)
            member.mode = 0o755 if entry.kind == "directory" else 0o644
            if entry.kind == "directory":
                member.type = tarfile.DIRTYPE
                archive.addfile(member)
                count += 1
                continue
            try:
                descriptor, member.size = tree.open_read(entry.path)
            except (BadPath, NotFound):
                continue  # gone or replaced since it was listed
            total += member.size
            with os.fdopen(descriptor, "rb") as file:
                if total > limit:
                    message = f"the tree holds more than {limit} bytes"
                    raise TooLarge(message)
                # The code may cut the file while it is read; the archive must still be as long as it says.
                archive.addfile(member, _Padded(file, member.size))
            count += 1
    return count


class _Padded:
    """Reads exactly so many bytes, with zeros for what has vanished meanwhile."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._left = size

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        data = self._file.read(wanted)
        self._left -= wanted
        return data + b"\0" * (wanted - len(data))


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
