"""A stage for containers: the real server over each place that runs code, and what it may leave behind."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
from fixtures_code_interpreter import coding, sandbox_pid
from fixtures_sandbox_server import SandboxProcess
from fixtures_server import Server

QUOTAS = {"max_containers": 6, "max_memory": 8 * 2**30, "max_disk": 8_000_000}


class Stage:
    """A server, and what runs its code."""

    def __init__(self, server: Server) -> None:
        self.server = server

    @property
    def sandbox(self) -> SandboxProcess | None:
        """The sandbox server, where it runs elsewhere."""
        return self.server.sandbox

    def http(self, key: str = "ours") -> httpx2.Client:
        """Plain HTTP with a key."""
        return self.server.http(headers={"authorization": f"Bearer {self.server.keys[key]}"})

    def sandbox_pid(self) -> int:
        """The process of the sandbox server, wherever it runs."""
        return sandbox_pid(self.server)

    def files(self) -> set[str]:
        """What lies in the server's directory."""
        return {str(path) for path in self.server.directory.rglob("*") if "__pycache__" not in path.parts}

    def rows(self, question: str) -> list:
        """What the database says, asked past the server."""
        with closing(sqlite3.connect(self.server.directory / ".antwort" / "antwort.db")) as database:
            return database.execute(question).fetchall()


@contextmanager
def staged(kind: str, place: Path, config: dict[str, Any] | None = None) -> Iterator[Stage]:
    """A server with sandboxes of a kind."""
    with coding(kind, place, **(config or {})) as server:
        yield Stage(server)


def execute(client: Any, container_id: str, code: str, **more: object) -> Any:
    """Code without a model: an extension, asked for through the SDK's own connection."""
    return client.post(f"/containers/{container_id}/exec", cast_to=object, body={"code": code, **more})


def files(client: Any, container_id: str) -> dict[str, Any]:
    """The files in a container, by path."""
    return {file.path: file for file in client.containers.files.list(container_id)}


def read(client: Any, container_id: str, file_id: str) -> bytes:
    """The content of one of them."""
    return client.containers.files.content.retrieve(file_id, container_id=container_id).read()
