"""Disk quota: measures and removes directory trees on the host.

The content was written by an installer with untrusted input: it may be sparse, linked, unreadable or deeply nested. So
what cannot be read counts as over the quota, and nothing here is recursive.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import secrets
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from antwort.sandbox.errors import TooLarge

MIN_FILE_COST: Final = 4096
"""What an empty file counts: a disk can run out of inodes as well as of bytes."""

_MAX_DEPTH: Final = 64
_MAX_NAMES: Final = 1_000
_MAX_PATH_BYTES: Final = 1024  # relative to the top, which may be anywhere on the host
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Disk usage of a tree. Hard links count once."""

    size: int = 0
    files: int = 0
    """Directories included."""
    directories: int = 0
    """The part of the size that is directories: what a hard-linked copy would use."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits on a tree."""

    size: int
    files: int

    def check(self, usage: DiskUsage) -> None:
        if usage.size > self.size:
            raise TooLarge(f"more than the limit of {self.size} bytes")
        if usage.files > self.files:
            raise TooLarge(f"more than the limit of {self.files} files")


def measure(top: Path, quota: Quota | None = None) -> DiskUsage:
    """Measure the tree; raises `TooLarge` as soon as it exceeds the quota."""
    size = files = directories = 0
    seen: set[int] = set()
    for _, info in walk(top):
        if info.st_nlink > 1 and not stat.S_ISDIR(info.st_mode):
            if info.st_ino in seen:
                continue
            seen.add(info.st_ino)
        # A sparse file counts with its apparent size, which a copy would use.
        cost = max(info.st_size, info.st_blocks * 512, MIN_FILE_COST)
        size, files = size + cost, files + 1
        directories += cost if stat.S_ISDIR(info.st_mode) else 0
        if quota is not None:
            quota.check(DiskUsage(size, files, directories))
    return DiskUsage(size, files, directories)


def walk(top: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """All entries below, directories before their content; links are not followed. The tree may change meanwhile."""
    waiting = [(top, 0)]
    longest = len(os.fsencode(top)) + _MAX_PATH_BYTES
    while waiting:
        directory, depth = waiting.pop()
        if depth > _MAX_DEPTH:
            raise TooLarge(f"more than the limit of {_MAX_DEPTH} nested directories")
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if len(os.fsencode(entry.path)) > longest:
                        raise TooLarge(f"a path longer than the limit of {_MAX_PATH_BYTES} bytes")
                    with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                        info = entry.stat(follow_symlinks=False)
                        yield Path(entry.path), info
                        if stat.S_ISDIR(info.st_mode):
                            waiting.append((Path(entry.path), depth + 1))
        except (FileNotFoundError, NotADirectoryError):
            continue  # likewise
        except OSError as error:
            # Unreadable, or the path is too long: the content is unknown.
            raise TooLarge(f"a directory in it cannot be read ({error.strerror})") from error


def remove(top: Path, *, timeout: float = math.inf) -> None:
    """Remove the tree, whatever its depth and permissions.

    A `timeout` is for a tree to which processes may still write: what fails is tried again until then.
    """
    deadline = time.monotonic() + timeout
    try:
        if not stat.S_ISDIR(top.lstat().st_mode):
            top.unlink()
            return
    except FileNotFoundError:
        return
    top.chmod(0o700)
    root = os.open(top, _OPEN_DIRECTORY)
    try:
        while names := _some_names(root):
            for name in names:
                try:
                    _remove_one(name, root, deadline)
                except OSError:
                    if timeout == math.inf or time.monotonic() > deadline:
                        raise
    finally:
        os.close(root)
    top.rmdir()


def _remove_one(name: str, root: int, deadline: float) -> None:
    """Unlink a file, or remove a directory after its subdirectories were moved up to the root: no recursion."""
    _check_time(deadline)
    if not stat.S_ISDIR(os.stat(name, dir_fd=root, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=root)
        return
    os.chmod(name, 0o700, dir_fd=root)
    directory = os.open(name, _OPEN_DIRECTORY, dir_fd=root)
    try:
        while children := _some_names(directory):
            _check_time(deadline)
            for child in children:
                if stat.S_ISDIR(os.stat(child, dir_fd=directory, follow_symlinks=False).st_mode):
                    os.chmod(child, 0o700, dir_fd=directory)  # moving a directory writes to it
                    os.rename(child, secrets.token_hex(16), src_dir_fd=directory, dst_dir_fd=root)
                else:
                    os.unlink(child, dir_fd=directory)
    finally:
        os.close(directory)
    os.rmdir(name, dir_fd=root)


def _check_time(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError(errno.ETIMEDOUT, "a process writes to the directory while it is removed")


def _some_names(directory: int) -> list[str]:
    """A bounded number of the names in a directory, which may have millions."""
    with os.scandir(directory) as entries:
        return [entry.name for entry in islice(entries, _MAX_NAMES)]
