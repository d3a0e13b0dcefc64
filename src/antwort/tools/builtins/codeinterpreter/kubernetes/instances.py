"""Instance names: the label of a server's claims, by which its next start finds those that a kill has left.

The name is a random one in a file of the state directory, which is locked while the server runs. So no server deletes
the claims of another one that has the same host name and paths, or was started with the same state directory.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import secrets
from pathlib import Path
from typing import Final

_logger = logging.getLogger(__name__)

_FILE: Final = "claims-instance"
_TOKEN_RE: Final = re.compile(rb"[0-9a-f]{20}")


class Instance:
    """The instance with this state directory. `name` is valid as a label, and the same after a restart.

    It is another one while another process has the directory.
    """

    def __init__(self, directory: Path) -> None:
        self._descriptor: int | None = None
        try:
            token = self._lock(directory)
        except OSError as error:
            token = secrets.token_hex(10)
            reason = "another process uses it" if isinstance(error, BlockingIOError) else str(error)
            _logger.warning(
                "SandboxClaims that this process leaves end at their shutdownTime only, without %s: %s",
                directory / _FILE,
                reason,
            )
        self.name = f"antwort-{token}"

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _lock(self, directory: Path) -> str:
        """The random part of the name, which is created by the first process."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(directory / _FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            known = os.pread(descriptor, 64, 0)
            if not _TOKEN_RE.fullmatch(known):
                known = secrets.token_hex(10).encode()
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, known, 0)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return known.decode()
