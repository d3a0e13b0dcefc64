"""Package cache on disk: read-only sets of installed packages, leased to containers, evicted least recently used.

A set is in use while a process holds a shared `flock` on its directory. The kernel releases the lock when a server is
killed. A killed server leaves only unfinished directories: their names begin with a dot, they are not locked, and the
next server removes them at start. Several servers may share one cache directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import tempfile
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final

from antwort.sandbox.errors import TooLarge
from antwort.sandbox.files import quota
from antwort.sandbox.files.quota import DiskUsage

_SET_NAME_RE: Final = re.compile(r"[0-9a-f]{64}")


class Lease:
    """Keeps a set of packages in the cache until it is released."""

    def __init__(self, path: Path, release: Callable[[], None]) -> None:
        self.path = path
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Idempotent."""
        release, self._release = self._release, None
        if release is not None:
            release()


class PackageCache:
    """The sets in one directory, bounded by `max_bytes` together."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self.directory = directory
        self._max_bytes = max_bytes
        self._leases: dict[str, tuple[int, int]] = {}
        """By set: the descriptor that holds the shared lock, and the number of leases."""
        self._lease_lock = threading.Lock()
        self._sizes: dict[str, int] = {}
        self._reserved = 0
        self._size_lock = threading.Lock()
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o755)  # despite the umask: when the server is root, zygotes run as other users
        for leftover in directory.glob(".*"):
            with contextlib.suppress(OSError), lock_directory(leftover) as is_locked:
                if is_locked:
                    quota.remove(leftover)

    def lease(self, name: str) -> Lease | None:
        """A lease on the set of this name, or None. Fast enough for the event loop: a few system calls."""
        with self._lease_lock:
            descriptor, leases = self._leases.get(name) or (self._lock_shared(name), 0)
            if descriptor is None:
                return None
            self._leases[name] = (descriptor, leases + 1)
            os.utime(descriptor)  # the time of last use, which other servers read too
        return Lease(self.directory / name, lambda: self._release(name))

    def _lock_shared(self, name: str) -> int | None:
        path = self.directory / name
        descriptor = _flock(path, fcntl.LOCK_SH)
        if descriptor is not None and not _is_same_directory(path, descriptor):
            os.close(descriptor)  # evicted between opening and locking
            return None
        return descriptor

    def _release(self, name: str) -> None:
        with self._lease_lock:
            descriptor, leases = self._leases.pop(name)
            if leases > 1:
                self._leases[name] = (descriptor, leases - 1)
                return
            os.utime(descriptor)
            os.close(descriptor)

    @contextlib.contextmanager
    def staging_directory(self) -> Generator[Path]:
        """A locked directory to install a set in, removed afterwards."""
        staging = Path(tempfile.mkdtemp(dir=self.directory, prefix="."))
        with lock_directory(staging):
            try:
                yield staging
            finally:
                with contextlib.suppress(OSError):  # the next server removes it at start
                    quota.remove(staging)

    def put(self, name: str, staged: Path, usage: DiskUsage) -> None:
        """Make an installed set read-only and move it into the cache atomically; `TooLarge` if it does not fit."""
        with self._size_lock:
            self._evict_for(usage.size)
            _seal(staged)
            _set_owner_and_mode(staged, 0o755)  # a directory must be writable to be renamed
            path = self.directory / name
            try:
                staged.rename(path)
            except OSError:
                if not path.is_dir():  # else another server installed it first
                    raise
            path.chmod(0o555)
            self._sizes[name] = usage.size

    def reserve(self, size: int) -> None:
        """Count bytes that a caller stores beside the sets, or `TooLarge`."""
        with self._size_lock:
            self._evict_for(size)
            self._reserved += size

    def unreserve(self, size: int) -> None:
        with self._size_lock:
            self._reserved -= size

    def _evict_for(self, size: int) -> None:
        paths = [path for path in self.directory.iterdir() if _SET_NAME_RE.fullmatch(path.name)]
        self._sizes = {path.name: self._sizes.get(path.name) or quota.measure(path).size for path in paths}
        used = self._reserved + sum(self._sizes.values())
        for path in sorted(paths, key=_last_used):
            if used + size <= self._max_bytes:
                return
            if self._evict(path):
                used -= self._sizes.pop(path.name)
        if used + size > self._max_bytes:
            message = f"the package cache is full of packages in use: {size} more bytes would exceed its limit"
            raise TooLarge(f"{message} of {self._max_bytes} bytes")

    def _evict(self, path: Path) -> bool:
        descriptor = _flock(path, fcntl.LOCK_EX)
        if descriptor is None:
            return False  # in use
        try:
            with self.staging_directory() as trash:
                path.chmod(0o755)
                path.rename(trash / "out")
        finally:
            os.close(descriptor)
        return True


@contextlib.contextmanager
def lock_directory(path: Path) -> Generator[bool]:
    """Hold an exclusive `flock` on a directory; yields whether it was acquired. A killed server releases it, too."""
    descriptor = _flock(path, fcntl.LOCK_EX)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _flock(path: Path, kind: int) -> int | None:
    """A descriptor that holds the lock, or None if the directory is missing or locked."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _is_same_directory(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _last_used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0  # evicted by another server


def _seal(top: Path) -> None:
    """Remove write permission; anything but files and directories is deleted: wheels contain nothing else."""
    for path, info in quota.walk(top):
        if stat.S_ISDIR(info.st_mode):
            _set_owner_and_mode(path, 0o555)
        elif stat.S_ISREG(info.st_mode):
            _set_owner_and_mode(path, 0o555 if info.st_mode & stat.S_IXUSR else 0o444)
        else:
            path.parent.chmod(0o755)
            path.unlink()
            path.parent.chmod(0o555)


def _set_owner_and_mode(path: Path, mode: int) -> None:
    if os.geteuid() == 0:
        os.chown(path, 0, 0)
    path.chmod(mode)
