"""One store, one server: a lock that the kernel lets go of when its process ends, however that ends.

Two servers on one store would each take the other's responses for those of a process that
is gone, and the other's uploads for leftovers.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from antwort.storage.errors import UnusableStore

_LONGEST = 32


class StoreLock:
    """Held from when it is made until `release`. To be made in a thread: it waits for the disk."""

    def __init__(self, database: Path, blobs: Path) -> None:
        self._held: list[int] = []
        try:
            self._hold(lock_file(database), database, "storage.url")
            self._hold(blobs, blobs, "storage.blobs")
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let another have it."""
        while self._held:
            os.close(self._held.pop())

    def _hold(self, path: Path, what: Path, setting: str) -> None:
        file = _open(path)
        self._held.append(file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UnusableStore(
                f"{what} is in use by another antwort{_by_whom(file)}. Stop that one first, "
                f"or give this one a store of its own: set `{setting}`."
            ) from error
        except OSError as error:
            raise UnusableStore(
                f"{what} cannot be locked: {error.strerror}. Name a place on a disk of this machine in `{setting}`."
            ) from error
        with suppress(OSError):  # a directory has no room for it, and nobody relies on it
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)


def lock_file(database: Path) -> Path:
    """Beside the database: SQLite's own locks are on the database itself, and end with any of its descriptors."""
    real = database.resolve()
    return real.with_name(f"{real.name}.lock")


def holder(database: Path) -> str | None:
    """Who has a store open now, as far as that is known; None where nobody has. Changes nothing."""
    try:
        file = os.open(lock_file(database), os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return f"another antwort{_by_whom(file)}"
    finally:
        os.close(file)
    return None


def _open(path: Path) -> int:
    if path.is_dir():
        return os.open(path, os.O_RDONLY)
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def _by_whom(file: int) -> str:
    try:
        written = os.pread(file, _LONGEST, 0).decode().strip()
    except (OSError, UnicodeError):  # a directory, or not our doing
        return ""
    return f" (process {written})" if written.isdecimal() else ""
