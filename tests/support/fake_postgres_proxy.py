"""Proxy in front of a PostgreSQL server: a slow network, and connections that break or get no answers any more."""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import psycopg

_READY = b"Z\x00\x00\x00\x05I"  # the message ReadyForQuery
_COMMITTED = b"C\x00\x00\x00\x0bCOMMIT\x00"  # the message CommandComplete


class PostgresProxy:
    """Listens on a Unix socket in a directory of its own."""

    def __init__(self, server_url: str, directory: Path) -> None:
        with psycopg.connect(server_url) as connection:
            info = connection.info
            self._target = (info.host, info.port)
            user = f"{info.user}:{quote(info.password, safe='')}" if info.password else info.user
            self.url = f"postgresql://{user}@/{info.dbname}?host={quote(str(directory), safe='')}&port={info.port}"
            path = directory / f".s.PGSQL.{info.port}"
        self.delay = 0.0
        """Seconds by which each answer of the server is delayed."""
        self.lost_commits = 0
        """So many COMMITs take effect, but their connection breaks before the client knows."""
        self.silent: set[int] = set()
        """The numbers of the connections, from 0 on, that stay open and get no answers any more."""
        self.is_silent_after_login = False
        """New connections get no answers behind those of the login."""
        self.clients: list[socket.socket] = []
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def break_connection(self, number: int) -> None:
        """End a connection."""
        self.clients[number].shutdown(socket.SHUT_RDWR)

    def close_clients(self) -> None:
        """End all connections, so that nothing waits for an answer any more."""
        for client in self.clients:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = self._connect()
                except OSError:
                    client.close()
                    continue
                number = len(self.clients)
                self.clients.append(client)
                threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
                threading.Thread(target=self._forward_answers, args=(server, client, number), daemon=True).start()

    def _connect(self) -> socket.socket:
        host, port = self._target
        if not host.startswith("/"):
            return socket.create_connection(self._target)
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(f"{host}/.s.PGSQL.{port}")
        except OSError:
            server.close()
            raise
        return server

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        _close(source, target)

    def _forward_answers(self, server: socket.socket, client: socket.socket, number: int) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if number in self.silent:
                    continue
                if self.delay:
                    time.sleep(self.delay)
                if _COMMITTED in data and self._loses_commit():
                    break
                client.sendall(data)
                if self.is_silent_after_login and data.endswith(_READY):
                    self.silent.add(number)
        _close(server, client)

    def _loses_commit(self) -> bool:
        with self._lock:
            is_lost = self.lost_commits > 0
            self.lost_commits -= is_lost
            return is_lost


def _close(*sockets: socket.socket) -> None:
    for one in sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


@contextmanager
def running_proxy(server_url: str) -> Iterator[PostgresProxy]:
    """Context manager: a proxy in front of a server."""
    with tempfile.TemporaryDirectory(prefix="pgp-") as folder:  # a short path: that of a Unix socket is limited
        proxy = PostgresProxy(server_url, Path(folder))
        try:
            yield proxy
        finally:
            proxy.close()
