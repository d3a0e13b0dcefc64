"""Opening what lies beneath a directory, and nothing else: no symbolic link is followed, at any part of the path.

Decided on descriptors, so that nothing which happens to the tree meanwhile changes the answer. Two routes that behave
alike: `openat2` where the kernel has it (Linux 5.6), and a walk that opens one part at a time everywhere else.
Raises plain `OSError`s; whoever calls knows how to say it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import Protocol

from weakincentives.filesystem.paths import MAX_PATH_BYTES, Parts

_COMMON_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW

# A FIFO must not make us wait for its other end, nor a terminal become ours.
READ_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
LIST_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY

# To pass through a directory, the right to search it is enough; only Linux can say so when it opens one.
TRAVERSE_DIRECTORY = os.O_DIRECTORY | getattr(os, "O_PATH", os.O_RDONLY)

CHUNK_BYTES = 1 << 20

_SYS_OPENAT2 = 437  # the same on every architecture that Python runs on, but Alpha
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_MAX_ATTEMPTS = 16


class Opener(Protocol):
    """One of the two routes."""

    def __call__(self, anchor: int, parts: Parts, flags: int) -> int:
        """A new descriptor of what is at `parts` beneath the directory `anchor`."""
        ...


def open_by_components(anchor: int, parts: Parts, flags: int) -> int:
    """Open one part after the other, each from its parent's descriptor."""
    here = anchor
    try:
        for part in parts[:-1]:
            below = os.open(part, TRAVERSE_DIRECTORY | _COMMON_FLAGS, dir_fd=here)
            if here != anchor:
                os.close(here)
            here = below
        return os.open(parts[-1] if parts else ".", flags | _COMMON_FLAGS, dir_fd=here)
    finally:
        if here != anchor:
            os.close(here)


class _OpenHow(ctypes.Structure):
    """The kernel's `struct open_how`."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def open_with_openat2(anchor: int, parts: Parts, flags: int) -> int:
    """Let the kernel do the walk, in one `openat2`."""
    path = os.fsencode("/".join(parts) or ".")
    if len(path) > MAX_PATH_BYTES:  # more than the kernel takes at once
        return open_by_components(anchor, parts, flags)
    how = _OpenHow(flags | _COMMON_FLAGS, 0, _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS)
    code = 0
    for _ in range(_MAX_ATTEMPTS):
        descriptor: int = _libc().syscall(
            ctypes.c_long(_SYS_OPENAT2),
            ctypes.c_int(anchor),
            ctypes.c_char_p(path),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if descriptor >= 0:
            return descriptor
        code = ctypes.get_errno()
        # EAGAIN: something was renamed on the way, and the kernel cannot tell whether it went outside.
        if code not in {errno.EINTR, errno.EAGAIN}:
            break
    raise OSError(code, os.strerror(code), "/".join(parts))


@cache
def default_opener() -> Opener:
    """The quicker route that this machine has."""
    return open_with_openat2 if _has_openat2() else open_by_components


def _has_openat2() -> bool:
    """Ask for something harmless: an old kernel says ENOSYS, an old seccomp filter EPERM."""
    if not sys.platform.startswith("linux"):
        return False
    with open_directory("/") as anchor:
        try:
            os.close(open_with_openat2(anchor, (), TRAVERSE_DIRECTORY))
        except OSError:
            return False
    return True


@contextmanager
def open_directory(path: str) -> Generator[int]:
    """A directory to open things beneath; this path is the caller's own and may pass through links."""
    descriptor = os.open(path, TRAVERSE_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_beneath(opener: Opener, anchor: int, parts: Parts, flags: int) -> Generator[int]:
    """What `opener` opens, closed afterwards."""
    descriptor = opener(anchor, parts, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def list_names(directory: int) -> list[str]:
    """The names of a directory's entries, in no order; all of them at once, so that they may be changed meanwhile."""
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries]


def read_all(descriptor: int, size: int = -1) -> bytes:
    """What is left in a file, at most `size` bytes of it."""
    chunks: list[bytes] = []
    while size and (chunk := os.read(descriptor, min(size, CHUNK_BYTES) if size > 0 else CHUNK_BYTES)):
        chunks.append(chunk)
        size -= len(chunk) if size > 0 else 0
    return b"".join(chunks)


def write_all(descriptor: int, content: bytes | memoryview) -> None:
    """Write all of it: one call may take less than it is given."""
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


def describe_mode(mode: int) -> str:
    """What a file of this mode is, in words."""
    for test, what in _KINDS:
        if test(mode):
            return what
    return "a special file"


_KINDS = (
    (stat.S_ISREG, "a file"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISLNK, "a symbolic link (links are never followed)"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
