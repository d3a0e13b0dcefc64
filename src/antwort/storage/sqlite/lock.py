"""Lock of a store (flock): one process per SQLite database and blob directory.

The kernel releases it when the process ends in any way.

Without it, two servers on one store would each recover the other's running responses as if its process had died, and
delete the other's unfinished uploads as orphans.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from antwort.storage.errors import UnusableStore

_MAX_HOLDER_LENGTH = 64


class StoreLock:
    """Acquired by the constructor, which blocks on the disk, and held until `release`.

    `command` is what this process runs, such as `antwort import`: for the error of others. Empty for a server.
    """

    def __init__(self, database: Path, blobs: Path | None = None, *, command: str = "") -> None:
        self._fds: list[int] = []
        self._command = command
        try:
            self._acquire(lock_file(database), database, "storage.url")
            if blobs is not None:
                self._acquire(blobs, blobs, "storage.blobs")
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release the lock."""
        while self._fds:
            os.close(self._fds.pop())

    def _acquire(self, path: Path, locked: Path, setting: str) -> None:
        file = _open(path)
        self._fds.append(file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _Holder.read(file)
            raise UnusableStore(
                f"{locked} is in use by {holder}. {holder.remedy}, or set `{setting}` to another path."
            ) from error
        except OSError as error:
            raise UnusableStore(
                f"{locked} cannot be locked: {error.strerror}. Set `{setting}` to a path on a local disk."
            ) from error
        with suppress(OSError):  # not possible for a directory; the text is for error messages only
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()} {self._command}\n".encode(), 0)


@dataclass(frozen=True)
class _Holder:
    """The process that holds a lock, as its file says. Nothing is known where that is a directory."""

    pid: str = ""
    command: str = ""

    @classmethod
    def read(cls, file: int) -> _Holder:
        try:
            pid, _, command = os.pread(file, _MAX_HOLDER_LENGTH, 0).decode().strip().partition(" ")
        except (OSError, UnicodeError):  # a directory, or not written by antwort
            return cls()
        return cls(pid, command) if pid.isdecimal() else cls()

    @property
    def remedy(self) -> str:
        return "Wait until it has finished" if self.command else "Stop that process first"

    def __str__(self) -> str:
        name = f"`{self.command}`" if self.command else "another antwort"
        return f"{name} (process {self.pid})" if self.pid else name


def lock_file(database: Path) -> Path:
    """The lock file. Not the database itself: closing any descriptor of it would release SQLite's own locks."""
    real = database.resolve()
    return real.with_name(f"{real.name}.lock")


def lock_holder(database: Path) -> str | None:
    """The process that has the store open, or None. Changes nothing."""
    try:
        file = os.open(lock_file(database), os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return str(_Holder.read(file))
    finally:
        os.close(file)
    return None


def _open(path: Path) -> int:
    if path.is_dir():
        return os.open(path, os.O_RDONLY)
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
