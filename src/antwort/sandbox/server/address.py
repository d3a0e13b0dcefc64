"""Listening sockets of the sandbox server: TCP, or a Unix socket that without a token only its owner can reach.

The sockets are opened before the rest of the server starts, so that an unavailable address is reported at once and
clients that connect during the start wait.
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
_GROUP_AND_OTHERS: Final = 0o077
_UNSUPPORTED_FAMILY: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
"""A name may have addresses of a family that is disabled on this machine, such as IPv6."""


class Address:
    """Listening sockets and their URL as text. Created by `open`."""

    def __init__(self, sockets: list[socket.socket], text: str) -> None:
        self.sockets = sockets
        self._text = text

    def __str__(self) -> str:
        return self._text

    @classmethod
    @contextlib.contextmanager
    def open(cls, settings: SandboxSettings) -> Generator[Address]:
        """Listen on the configured address; at the end the sockets are closed and the socket file is removed."""
        with contextlib.ExitStack() as stack:
            if settings.uds is not None:
                path = Path(settings.uds).absolute()
                sockets = [stack.enter_context(_listen_unix(path, private=not settings.token))]
                text = f"unix:{path}"
            else:
                sockets = [stack.enter_context(tcp) for tcp in _listen_tcp(settings.host, settings.port)]
                host = f"[{settings.host}]" if ":" in settings.host else settings.host
                text = f"http://{host}:{sockets[0].getsockname()[1]}"
            yield cls(sockets, text)


def _listen_tcp(host: str, port: int) -> list[socket.socket]:
    """One socket for each address of the host name. Port 0 selects one free port for all of them."""
    opened: list[socket.socket] = []
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(addresses):
            chosen = opened[0].getsockname()[1] if opened else port
            try:
                opened.append(socket.create_server((str(address[0]), chosen), family=family, backlog=_BACKLOG))
            except OSError as error:
                if not opened or error.errno not in _UNSUPPORTED_FAMILY:
                    raise
    except OSError as error:
        for listener in opened:
            listener.close()
        raise CannotStart(f"cannot listen on {host}, port {port}: {error.strerror or error}") from error
    return opened


@contextlib.contextmanager
def _listen_unix(path: Path, *, private: bool) -> Generator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            _check_directory(path.parent, private=private)
            _remove_stale(path)
            listener.bind(str(path))
            path.chmod(0o600 if private else 0o666)
            identity = _identity(path)
            listener.listen(_BACKLOG)
        except OSError as error:
            raise CannotStart(f"cannot listen on {path}: {error.strerror or error}") from error
        try:
            yield listener
        finally:
            with contextlib.suppress(OSError):
                if _identity(path) == identity:  # not the socket of another server
                    path.unlink()


def _identity(path: Path) -> tuple[int, int]:
    """Inode number and change time: inode numbers are reused, but not with the same time."""
    status = path.lstat()
    return status.st_ino, status.st_ctime_ns


def _check_directory(directory: Path, *, private: bool) -> None:
    """Without a token only the owner may reach the socket, because every client can run code."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.stat()
    if private and (status.st_uid != os.geteuid() or status.st_mode & _GROUP_AND_OTHERS):
        cure = "make it private (chmod 700), choose another, or set SANDBOX_TOKEN"
        raise Refused(f"{directory} is open to other users: {cure}")


def _remove_stale(path: Path) -> None:
    """Remove the socket file of a killed server; `Refused` if a process listens on it or it is not a socket."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise Refused(f"{path} exists and is not a socket: choose another path")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)  # noqa: FBT003 - the signature of socket
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass  # a process listens, and its backlog is full
    raise Refused(f"another process listens on {path}: choose another path")
