"""Private files (mode 0600) that are replaced atomically under a file lock: API keys and sealing keys."""

from __future__ import annotations

import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path


class PrivateFileError(Exception):
    """A file with keys cannot be used; the message says what to do."""


class PrivateFile:
    """A file that only its owner may access. Changes replace it atomically: readers never see a partial file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> bytes:
        """The content; `PrivateFileError` if other users may read or write the file."""
        with self.path.open("rb") as file:
            if not _is_private(os.fstat(file.fileno())):
                raise PrivateFileError(f"{self.path} can be read or written by other users: run `chmod 600` on it.")
            return file.read()

    def write(self, content: bytes) -> None:
        """Replace the file. The new content is on the disk before this returns."""
        temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        self._sync_directory()

    @contextmanager
    def locked(self) -> Generator[None]:
        """Exclusive lock: concurrent changes to the file run one after the other. Creates the directory."""
        import fcntl  # noqa: PLC0415 - needed for changes only, and not on every platform

        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self.path.with_name(f".{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _sync_directory(self) -> None:
        """Make the rename durable: a key must not be lost after something was sealed with it."""
        handle = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _is_private(status: os.stat_result) -> bool:
    """Whether only its owner has rights, or the group may read a file of root, which is how Kubernetes mounts Secrets.

    Its `fsGroup` makes them readable by the group of the pod; a process that is not root could not read them otherwise.
    PostgreSQL has the same rule for its keys.
    """
    is_mounted_secret = status.st_uid == 0 != os.geteuid()
    return status.st_mode & (0o037 if is_mounted_secret else 0o077) == 0
