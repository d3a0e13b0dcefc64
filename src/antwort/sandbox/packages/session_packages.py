"""A directory beside each container that may be given packages while it runs.

The container sees its annex read-only from its first moment, and no mount is ever added to one that already runs
hostile code: sets are put into the directory from outside, file by file, as further names of the files on the shelf.
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
from antwort.sandbox.packages.cache import Lease, PackageCache, held


class SessionPackagesRoot:
    """All annexes of one server, in one directory that the next server removes if this one is killed."""

    def __init__(self, shelf: PackageCache) -> None:
        self._shelf = shelf
        self._stack = contextlib.ExitStack()
        self._place = Path(tempfile.mkdtemp(dir=shelf.directory, prefix=".annexes-"))
        self._stack.enter_context(held(self._place))
        self._place.chmod(0o755)

    def open(self) -> SessionPackages:
        """A new one, empty."""
        place = Path(tempfile.mkdtemp(dir=self._place))
        place.chmod(0o755)
        return SessionPackages(self._shelf, place)

    def close(self) -> None:
        """The server stops; every container has ended."""
        with contextlib.suppress(OSError):  # swept by whoever starts next
            quota.remove(self._place)
        self._stack.close()


class SessionPackages:
    """One container's. `add` and `close` are for threads: they may take as long as a large set has files."""

    def __init__(self, shelf: PackageCache, path: Path) -> None:
        self.path = path
        self._shelf = shelf
        self._leases: list[Lease] = []
        self._reserved = 0
        self._closed = False
        self._one_by_one = threading.Lock()

    def add(self, lease: Lease) -> str:
        """Put the set in, all at once as the container sees it; answers its name there. The lease is ours from now."""
        with self._one_by_one:
            if self._closed:
                lease.release()
                raise Ended("it ended while packages were installed")
            self._leases.append(lease)
            name = lease.path.name
            if not (self.path / name).exists():
                self._put(lease.path, self.path / name)
            return name

    def keep(self, lease: Lease) -> None:
        """A set that the container has from its beginning; released with the others."""
        self._leases.append(lease)

    def _put(self, source: Path, target: Path) -> None:
        # The files are there already; directories have one name only, so these are really made.
        size = quota.measure(source).directories + quota.LEAST
        self._shelf.reserve(size)
        self._reserved += size
        half_done = Path(tempfile.mkdtemp(dir=self.path, prefix="."))
        _link(source, half_done)
        half_done.chmod(0o755)
        half_done.rename(target)

    def close(self) -> None:
        """The container has ended."""
        with self._one_by_one:
            self._closed = True
            with contextlib.suppress(OSError):  # swept by whoever starts next
                quota.remove(self.path)
            self._shelf.give_back(self._reserved)
            self._reserved = 0
            while self._leases:
                self._leases.pop().release()


def _link(source: Path, target: Path) -> None:
    """The same tree a second time, its files the same files."""
    for path, info in quota.walk(source):
        place = target / path.relative_to(source)
        if stat.S_ISDIR(info.st_mode):
            place.mkdir()
            place.chmod(0o755)  # whatever the umask
        else:
            os.link(path, place, follow_symlinks=False)
