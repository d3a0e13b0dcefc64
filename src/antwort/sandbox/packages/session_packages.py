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
from typing import IO, Final

from antwort.sandbox.errors import Ended, TooLarge
from antwort.sandbox.files import quota
from antwort.sandbox.files.archive import unpack
from antwort.sandbox.files.tree import FileTree, split_path
from antwort.sandbox.packages.cache import Lease, PackageCache, lock_directory

SKILLS: Final = "skills"
"""The directory of the skills, below that of the packages."""
MAX_SKILL_BYTES: Final = 32 << 20
"""Of one skill, unpacked."""
MAX_SKILLS_BYTES: Final = 128 << 20
"""Of all skills of a container, with the space that small files take."""


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
        self._skill_bytes = 0
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

    def add_skill(self, name: str, archive: IO[bytes]) -> None:
        """Add the files of a tar archive as the skill `name`; one that exists is replaced.

        The container sees them read-only, as it sees the packages.
        """
        (checked,) = split_path(name)
        unfinished = Path(tempfile.mkdtemp(dir=self.path, prefix="."))
        try:
            tree = FileTree([os.open(unfinished, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)], None)
            try:
                unpack(tree, archive, "", limit=MAX_SKILL_BYTES)
            finally:
                tree.close()
            _make_readable(unfinished)
            size = quota.measure(unfinished).size
            with self._lock:
                if self._closed:
                    raise Ended("it ended while a skill was added")
                if self._skill_bytes + size > MAX_SKILLS_BYTES:
                    raise TooLarge(f"the skills of a container have more than {MAX_SKILLS_BYTES} bytes")
                self._cache.reserve(size)
                self._reserved += size
                self._skill_bytes += size
                skills = self.path / SKILLS
                skills.mkdir(exist_ok=True)
                skills.chmod(0o755)
                if (skills / checked).exists():
                    quota.remove(skills / checked)
                unfinished.rename(skills / checked)
        except FileNotFoundError as error:
            raise Ended("it ended while a skill was added") from error
        finally:
            if unfinished.exists():
                quota.remove(unfinished)

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


def _make_readable(top: Path) -> None:
    """Let the user of the container read the tree, despite the umask."""
    top.chmod(0o755)
    for path, info in quota.walk(top):
        path.chmod(0o755 if stat.S_ISDIR(info.st_mode) or info.st_mode & stat.S_IXUSR else 0o644)


def _link_tree(source: Path, target: Path) -> None:
    """Recreate the tree with hard links to its files."""
    for path, info in quota.walk(source):
        copy = target / path.relative_to(source)
        if stat.S_ISDIR(info.st_mode):
            copy.mkdir()
            copy.chmod(0o755)  # despite the umask
        else:
            os.link(path, copy, follow_symlinks=False)
