"""Installed sets of packages on disk: sealed, shared, kept while in use, and the longest unused removed for new ones.

In use means that somebody holds a shared lock on the set's directory. The kernel lets go of it when a server is
killed, so all that a killed one leaves are half-done directories: their names begin with a dot, nobody holds them, and
whoever starts next removes them. Servers may share one shelf.
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
from antwort.sandbox.files.quota import Usage

_NAME: Final = re.compile(r"[0-9a-f]{64}")


class Lease:
    """A set that stays where it is until this is released."""

    def __init__(self, path: Path, release: Callable[[], None]) -> None:
        self.path = path
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Safe to call twice."""
        release, self._release = self._release, None
        if release is not None:
            release()


class PackageCache:
    """The sets in one directory, together never larger than so many bytes."""

    def __init__(self, directory: Path, most_bytes: int) -> None:
        self.directory = directory
        self._most = most_bytes
        self._held: dict[str, tuple[int, int]] = {}
        """The descriptor that holds a set's lock, and for how many leases."""
        self._holding = threading.Lock()
        self._sizes: dict[str, int] = {}
        self._reserved = 0
        self._making_room = threading.Lock()
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o755)  # whatever the umask: as root, zygotes are other users
        for left in directory.glob(".*"):
            with contextlib.suppress(OSError), held(left) as ours:
                if ours:
                    quota.remove(left)

    def lease(self, name: str) -> Lease | None:
        """The set of this name, if it is there. Only a handful of system calls: fit for the event loop."""
        with self._holding:
            descriptor, leases = self._held.get(name) or (self._hold(name), 0)
            if descriptor is None:
                return None
            self._held[name] = (descriptor, leases + 1)
            os.utime(descriptor)  # when it was last used, also for the next server
        return Lease(self.directory / name, lambda: self._let_go(name))

    def _hold(self, name: str) -> int | None:
        path = self.directory / name
        descriptor = _locked(path, fcntl.LOCK_SH)
        if descriptor is not None and not _is_still(path, descriptor):
            os.close(descriptor)  # it was taken away between opening and locking
            return None
        return descriptor

    def _let_go(self, name: str) -> None:
        with self._holding:
            descriptor, leases = self._held.pop(name)
            if leases > 1:
                self._held[name] = (descriptor, leases - 1)
                return
            os.utime(descriptor)
            os.close(descriptor)

    @contextlib.contextmanager
    def workshop(self) -> Generator[Path]:
        """A directory to make a set in, gone afterwards."""
        place = Path(tempfile.mkdtemp(dir=self.directory, prefix="."))
        with held(place):
            try:
                yield place
            finally:
                with contextlib.suppress(OSError):  # swept by whoever starts next
                    quota.remove(place)

    def put(self, name: str, made: Path, usage: Usage) -> None:
        """Seal what was made and give it its name, in one step; `TooLarge` if all that is there is in use."""
        with self._making_room:
            self._make_room(usage.size)
            _seal(made)
            _own(made, 0o755)  # a directory must be writable to be renamed
            place = self.directory / name
            try:
                made.rename(place)
            except OSError:
                if not place.is_dir():  # else another server was faster
                    raise
            place.chmod(0o555)
            self._sizes[name] = usage.size

    def reserve(self, size: int) -> None:
        """Count so many bytes that somebody puts beside the sets, or `TooLarge`."""
        with self._making_room:
            self._make_room(size)
            self._reserved += size

    def give_back(self, size: int) -> None:
        with self._making_room:
            self._reserved -= size

    def _make_room(self, size: int) -> None:
        paths = [path for path in self.directory.iterdir() if _NAME.fullmatch(path.name)]
        self._sizes = {path.name: self._sizes.get(path.name) or quota.measure(path).size for path in paths}
        taken = self._reserved + sum(self._sizes.values())
        for path in sorted(paths, key=_last_used):
            if taken + size <= self._most:
                return
            if self._evict(path):
                taken -= self._sizes.pop(path.name)
        if taken + size > self._most:
            message = f"no room among the server's packages: {size} bytes more than are in use would be over its limit"
            raise TooLarge(f"{message} of {self._most} bytes")

    def _evict(self, path: Path) -> bool:
        descriptor = _locked(path, fcntl.LOCK_EX)
        if descriptor is None:
            return False  # in use
        try:
            with self.workshop() as bin_:
                path.chmod(0o755)
                path.rename(bin_ / "out")
        finally:
            os.close(descriptor)
        return True


@contextlib.contextmanager
def held(place: Path) -> Generator[bool]:
    """Whether nobody else works in this directory; until it is let go, nobody does. A killed server lets go, too."""
    descriptor = _locked(place, fcntl.LOCK_EX)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _locked(place: Path, kind: int) -> int | None:
    """A descriptor that holds the lock, or None where it is not to be had."""
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _last_used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0  # another server was faster


def _seal(top: Path) -> None:
    """Take write permission away; what is neither file nor directory is removed: wheels have none of it."""
    for path, info in quota.walk(top):
        if stat.S_ISDIR(info.st_mode):
            _own(path, 0o555)
        elif stat.S_ISREG(info.st_mode):
            _own(path, 0o555 if info.st_mode & stat.S_IXUSR else 0o444)
        else:
            path.parent.chmod(0o755)
            path.unlink()
            path.parent.chmod(0o555)


def _own(path: Path, mode: int) -> None:
    if os.geteuid() == 0:
        os.chown(path, 0, 0)
    path.chmod(mode)
