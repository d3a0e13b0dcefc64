"""Fixtures for the Containers API: the real server with each sandbox backend, its files and its database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
from fixtures_code_interpreter import code_server, sandbox_pid
from fixtures_sandbox_server import SandboxProcess
from fixtures_server import Server

QUOTAS = {"max_containers": 6, "max_memory": 8 * 2**30, "max_disk": 8_000_000}


class ContainerServer:
    """A server and its sandbox backend."""

    def __init__(self, server: Server) -> None:
        self.server = server

    @property
    def sandbox(self) -> SandboxProcess | None:
        """The sandbox server, where it runs elsewhere."""
        return self.server.sandbox

    def http(self, key: str = "owner") -> httpx2.Client:
        """Plain HTTP with a key."""
        return self.server.http(headers={"authorization": f"Bearer {self.server.keys[key]}"})

    def sandbox_pid(self) -> int:
        """The process of the sandbox server, wherever it runs."""
        return sandbox_pid(self.server)

    def files(self) -> set[str]:
        """The files in the server's directory."""
        return {str(path) for path in self.server.directory.rglob("*") if "__pycache__" not in path.parts}

    def rows(self, query: str) -> list:
        """The result of a query to the database of the server."""
        with closing(sqlite3.connect(self.server.directory / ".antwort" / "antwort.db")) as database:
            return database.execute(query).fetchall()


@contextmanager
def container_server(backend: str, directory: Path, config: dict[str, Any] | None = None) -> Iterator[ContainerServer]:
    """A server with this sandbox backend."""
    with code_server(backend, directory, **(config or {})) as server:
        yield ContainerServer(server)


def execute(client: Any, container_id: str, code: str, **more: object) -> Any:
    """Run code without a model: an extension, called with the SDK's connection."""
    return client.post(f"/containers/{container_id}/exec", cast_to=object, body={"code": code, **more})


def files(client: Any, container_id: str) -> dict[str, Any]:
    """The files in a container, by path."""
    return {file.path: file for file in client.containers.files.list(container_id)}


def read(client: Any, container_id: str, file_id: str) -> bytes:
    """The content of a file."""
    return client.containers.files.content.retrieve(file_id, container_id=container_id).read()
