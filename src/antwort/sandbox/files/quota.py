"""How much a tree on the host's disk takes, when that is too much, and how to be rid of it.

What lies there was written by an installer on a stranger's order: sparse, linked, locked or nested deeper than any
recursion goes. So whatever cannot be looked at counts as too much, and nothing here recurses.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from antwort.sandbox.errors import TooLarge

LEAST: Final = 4096
"""What an empty file costs: a disk runs out of files as well as of bytes."""

_DEEPEST: Final = 64
_LONGEST: Final = 1024  # of a path below the top: another top may stand deeper in the host's tree
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tree takes. Files with several names count once."""

    size: int = 0
    files: int = 0
    """Directories included."""
    directories: int = 0
    """The part of the size that is directories: what another tree of the same files would take."""


@dataclass(frozen=True, slots=True)
class Quota:
    """What a tree may take."""

    size: int
    files: int

    def check(self, usage: Usage) -> None:
        if usage.size > self.size:
            raise TooLarge(f"more than the limit of {self.size} bytes")
        if usage.files > self.files:
            raise TooLarge(f"more than the limit of {self.files} files")


def measure(top: Path, quota: Quota | None = None) -> Usage:
    """What is there, or `TooLarge` as soon as it is known to be more than the quota."""
    size = files = directories = 0
    seen: set[int] = set()
    for _, info in walk(top):
        if info.st_nlink > 1 and not stat.S_ISDIR(info.st_mode):
            if info.st_ino in seen:
                continue
            seen.add(info.st_ino)
        # A sparse file counts as long as it claims to be: it would be, once copied.
        cost = max(info.st_size, info.st_blocks * 512, LEAST)
        size, files = size + cost, files + 1
        directories += cost if stat.S_ISDIR(info.st_mode) else 0
        if quota is not None:
            quota.check(Usage(size, files, directories))
    return Usage(size, files, directories)


def walk(top: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Everything below, directories before what is in them; links are not followed. It may be changing meanwhile."""
    waiting = [(top, 0)]
    longest = len(os.fsencode(top)) + _LONGEST
    while waiting:
        directory, depth = waiting.pop()
        if depth > _DEEPEST:
            raise TooLarge(f"more than the limit of {_DEEPEST} directories inside each other")
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if len(os.fsencode(entry.path)) > longest:
                        raise TooLarge(f"a path longer than the limit of {_LONGEST} bytes")
                    with contextlib.suppress(FileNotFoundError):  # gone since it was listed
                        info = entry.stat(follow_symlinks=False)
                        yield Path(entry.path), info
                        if stat.S_ISDIR(info.st_mode):
                            waiting.append((Path(entry.path), depth + 1))
        except (FileNotFoundError, NotADirectoryError):
            continue  # likewise
        except OSError as error:
            # Locked, or a path that is too long: what is below could be anything.
            raise TooLarge(f"a directory in it cannot be looked at ({error.strerror})") from error


def remove(top: Path) -> None:
    """Remove the tree, however deep and whatever its permissions; nobody may be writing in it any more."""
    try:
        if not stat.S_ISDIR(top.lstat().st_mode):
            top.unlink()
            return
    except FileNotFoundError:
        return
    top.chmod(0o700)
    root = os.open(top, _DIRECTORY)
    try:
        while names := os.listdir(root):  # noqa: PTH208 - a descriptor has no pathlib
            for name in names:
                _remove_one(name, root)
    finally:
        os.close(root)
    top.rmdir()


def _remove_one(name: str, root: int) -> None:
    """A file is unlinked. A directory's own directories are moved up into the root first, so that none is deep."""
    if not stat.S_ISDIR(os.stat(name, dir_fd=root, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=root)
        return
    os.chmod(name, 0o700, dir_fd=root)
    directory = os.open(name, _DIRECTORY, dir_fd=root)
    try:
        for child in os.listdir(directory):  # noqa: PTH208 - a descriptor has no pathlib
            if stat.S_ISDIR(os.stat(child, dir_fd=directory, follow_symlinks=False).st_mode):
                os.chmod(child, 0o700, dir_fd=directory)  # moving a directory writes to it
                os.rename(child, secrets.token_hex(16), src_dir_fd=directory, dst_dir_fd=root)
            else:
                os.unlink(child, dir_fd=directory)
    finally:
        os.close(directory)
    os.rmdir(name, dir_fd=root)
