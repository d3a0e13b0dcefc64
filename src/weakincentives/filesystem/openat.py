"""Path resolution with `openat`: opens files beneath a directory without following symbolic links.

Resolution starts from a directory descriptor, so concurrent renames cannot redirect it (no time-of-check race). There
are two implementations with the same behaviour: `openat2` with RESOLVE_BENEATH where the kernel has it (Linux 5.6), and
one `openat` per path component elsewhere. Both raise plain `OSError`s.
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

# O_NONBLOCK: do not block on a FIFO. O_NOCTTY: do not acquire a controlling terminal.
READ_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
LIST_DIR = os.O_RDONLY | os.O_DIRECTORY

# O_PATH needs only search permission to traverse a directory; it exists on Linux only.
TRAVERSE = os.O_DIRECTORY | getattr(os, "O_PATH", os.O_RDONLY)

CHUNK_BYTES = 1 << 20

_SYS_OPENAT2 = 437  # the same on all architectures except Alpha
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_MAX_ATTEMPTS = 16


class Opener(Protocol):
    """Signature of the two implementations."""

    def __call__(self, anchor: int, parts: Parts, flags: int) -> int:
        """Open `parts` beneath the directory descriptor `anchor`; returns a new descriptor."""
        ...


def open_by_components(anchor: int, parts: Parts, flags: int) -> int:
    """Open one component at a time, each from its parent's descriptor."""
    current = anchor
    try:
        for part in parts[:-1]:
            child = os.open(part, TRAVERSE | _COMMON_FLAGS, dir_fd=current)
            if current != anchor:
                os.close(current)
            current = child
        return os.open(parts[-1] if parts else ".", flags | _COMMON_FLAGS, dir_fd=current)
    finally:
        if current != anchor:
            os.close(current)


class _OpenHow(ctypes.Structure):
    """The kernel's `struct open_how`."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def open_with_openat2(anchor: int, parts: Parts, flags: int) -> int:
    """Resolve the path with one `openat2` system call."""
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
        # EAGAIN: a concurrent rename, and the kernel cannot exclude that the path left the root. Retry.
        if code not in {errno.EINTR, errno.EAGAIN}:
            break
    raise OSError(code, os.strerror(code), "/".join(parts))


@cache
def default_opener() -> Opener:
    """`open_with_openat2` if the kernel supports it, else `open_by_components`."""
    return open_with_openat2 if _has_openat2() else open_by_components


def _has_openat2() -> bool:
    """Probe: an old kernel fails with ENOSYS, an old seccomp filter with EPERM."""
    if not sys.platform.startswith("linux"):
        return False
    with open_dir("/") as anchor:
        try:
            os.close(open_with_openat2(anchor, (), TRAVERSE))
        except OSError:
            return False
    return True


@contextmanager
def open_dir(path: str) -> Generator[int]:
    """A directory descriptor to resolve paths beneath. The path itself is trusted and may contain links."""
    descriptor = os.open(path, TRAVERSE | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_beneath(anchor: int, parts: Parts, flags: int, opener: Opener | None = None) -> Generator[int]:
    """Open `parts` beneath `anchor`; closes the descriptor at the end of the block."""
    descriptor = (opener or default_opener())(anchor, parts, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def list_names(directory: int) -> list[str]:
    """The names of a directory's entries, unordered, read completely so that the caller may change the directory."""
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries]


def read_all(descriptor: int, size: int = -1) -> bytes:
    """Read to the end of a file, or at most `size` bytes."""
    chunks: list[bytes] = []
    while size and (chunk := os.read(descriptor, min(size, CHUNK_BYTES) if size > 0 else CHUNK_BYTES)):
        chunks.append(chunk)
        size -= len(chunk) if size > 0 else 0
    return b"".join(chunks)


def write_all(descriptor: int, content: bytes | memoryview) -> None:
    """Write all bytes: one `os.write` may write fewer."""
    remaining = memoryview(content)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]


def describe_mode(mode: int) -> str:
    """A description of the file type for error messages."""
    for test, description in _KINDS:
        if test(mode):
            return description
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
