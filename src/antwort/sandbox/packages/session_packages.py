"""Session packages: a directory per container, into which packages are hard-linked while the container runs.

The directory is mounted read-only into the container before any code runs, and no mount is ever added later, when
hostile code runs. Sets are added from outside as hard links to the files in the package cache.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import threading
from pathlib import Path

from antwort.sandbox.errors import Ended
from antwort.sandbox.files import quota
from antwort.sandbox.packages.cache import Lease, PackageCache, lock_directory


class SessionPackagesRoot:
    """Parent of the session directories of one server; the next server removes it if this one is killed."""

    def __init__(self, cache: PackageCache) -> None:
        self._cache = cache
        self._stack = contextlib.ExitStack()
        self._directory = Path(tempfile.mkdtemp(dir=cache.directory, prefix=".session-packages-"))
        self._stack.enter_context(lock_directory(self._directory))
        self._directory.chmod(0o755)

    def open(self) -> SessionPackages:
        """A new, empty session directory."""
        path = Path(tempfile.mkdtemp(dir=self._directory))
        path.chmod(0o755)
        return SessionPackages(self._cache, path)

    def close(self) -> None:
        """Remove it. Every container must have ended."""
        with contextlib.suppress(OSError):  # the next server removes it at start
            quota.remove(self._directory)
        self._stack.close()


class SessionPackages:
    """Packages of one container. Call `add` and `close` in threads: they take time proportional to the files."""

    def __init__(self, cache: PackageCache, path: Path) -> None:
        self.path = path
        self._cache = cache
        self._leases: list[Lease] = []
        self._reserved = 0
        self._closed = False
        self._lock = threading.Lock()

    def add(self, lease: Lease) -> str:
        """Add the set atomically and take over the lease; returns the set's name in the directory."""
        with self._lock:
            if self._closed:
                lease.release()
                raise Ended("it ended while packages were installed")
            self._leases.append(lease)
            name = lease.path.name
            if not (self.path / name).exists():
                self._link_set(lease.path, self.path / name)
            return name

    def hold_lease(self, lease: Lease) -> None:
        """Keep the lease of a set that the container was created with; released by `close`."""
        self._leases.append(lease)

    def _link_set(self, source: Path, target: Path) -> None:
        # Files are hard links and cost nothing; directories are created, so they are counted.
        size = quota.measure(source).directories + quota.MIN_FILE_COST
        self._cache.reserve(size)
        self._reserved += size
        unfinished = Path(tempfile.mkdtemp(dir=self.path, prefix="."))
        _link_tree(source, unfinished)
        unfinished.chmod(0o755)
        unfinished.rename(target)

    def close(self) -> None:
        """Remove the directory and release the leases, after the container has ended."""
        with self._lock:
            self._closed = True
            with contextlib.suppress(OSError):  # the next server removes it at start
                quota.remove(self.path)
            self._cache.unreserve(self._reserved)
            self._reserved = 0
            while self._leases:
                self._leases.pop().release()


def _link_tree(source: Path, target: Path) -> None:
    """Recreate the tree with hard links to its files."""
    for path, info in quota.walk(source):
        copy = target / path.relative_to(source)
        if stat.S_ISDIR(info.st_mode):
            copy.mkdir()
            copy.chmod(0o755)  # despite the umask
        else:
            os.link(path, copy, follow_symlinks=False)
