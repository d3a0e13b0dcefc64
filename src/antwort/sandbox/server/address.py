"""Where the server listens: a port, or a Unix socket that only its owner can reach.

The sockets are opened before anything else is tried, so that an address that cannot be had is told at once, and
whoever connects while the server starts waits for it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Generator
from pathlib import Path
from typing import Final

from antwort.sandbox.errors import CannotStart, Refused

from .settings import SandboxSettings

_BACKLOG: Final = 2048
_FOR_OTHERS: Final = 0o077
_NOT_HERE: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
"""A name may have addresses of a kind that this machine has switched off."""


class Address:
    """The sockets that a server listens on, and how a person writes them. `open` one."""

    def __init__(self, sockets: list[socket.socket], text: str) -> None:
        self.sockets = sockets
        self._text = text

    def __str__(self) -> str:
        return self._text

    @classmethod
    @contextlib.contextmanager
    def open(cls, settings: SandboxSettings) -> Generator[Address]:
        """Listen where the settings say; afterwards nothing is left of it."""
        with contextlib.ExitStack() as opened:
            if settings.uds is not None:
                path = Path(settings.uds).absolute()
                sockets = [opened.enter_context(_unix(path, private=not settings.token))]
                text = f"unix:{path}"
            else:
                sockets = [opened.enter_context(one) for one in _internet(settings.host, settings.port)]
                port: int = sockets[0].getsockname()[1]
                host = f"[{settings.host}]" if ":" in settings.host else settings.host
                text = f"http://{host}:{port}"
            yield cls(sockets, text)


def _internet(host: str, port: int) -> list[socket.socket]:
    """One socket for each address that the name has here; port 0 is any that is free, the same for all."""
    opened: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            chosen = opened[0].getsockname()[1] if opened else port
            try:
                opened.append(socket.create_server((str(address[0]), chosen), family=family, backlog=_BACKLOG))
            except OSError as error:
                if not opened or error.errno not in _NOT_HERE:
                    raise
    except OSError as error:
        for one in opened:
            one.close()
        raise CannotStart(f"cannot listen on {host}, port {port}: {error.strerror or error}") from error
    return opened


@contextlib.contextmanager
def _unix(path: Path, *, private: bool) -> Generator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            _check_directory(path.parent, private=private)
            _remove_stale(path)
            listener.bind(str(path))
            path.chmod(0o600 if private else 0o666)
            mark = _mark(path)
            listener.listen(_BACKLOG)
        except OSError as error:
            raise CannotStart(f"cannot listen on {path}: {error.strerror or error}") from error
        try:
            yield listener
        finally:
            with contextlib.suppress(OSError):
                if _mark(path) == mark:  # another may have taken the place
                    path.unlink()


def _mark(path: Path) -> tuple[int, int]:
    """What no other file at the same place has: a number may be given again, but not at the same time."""
    found = path.lstat()
    return found.st_ino, found.st_ctime_ns


def _check_directory(directory: Path, *, private: bool) -> None:
    """Whoever can reach the socket can run code, so without a token that must be its owner alone."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.stat()
    if private and (found.st_uid != os.geteuid() or found.st_mode & _FOR_OTHERS):
        message = f"{directory} is open to others: make it private (chmod 700), choose another, or set SANDBOX_TOKEN"
        raise Refused(message)


def _remove_stale(path: Path) -> None:
    """What a server that was killed has left; not what somebody listens on, nor anything that is no socket."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise Refused(f"{path} is there already and is no socket: choose another path")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as caller:
        caller.setblocking(False)  # noqa: FBT003 - the socket's own way
        try:
            caller.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass  # somebody listens, and has no time for us
    raise Refused(f"somebody listens on {path} already: choose another path")
