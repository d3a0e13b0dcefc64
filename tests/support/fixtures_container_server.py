"""Fixtures for the Containers API: the real server with each sandbox backend, its files and its database."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
from fixtures_code_interpreter import code_server, descendants, sandbox_pid
from fixtures_sandbox_server import SandboxProcess
from fixtures_server import Server

QUOTAS = {"max_containers": 6, "max_memory": 8 * 2**30, "max_disk": 8_000_000}


class ContainerServer:
    """A server and its sandbox backend."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def metrics(self) -> dict[str, float]:
        """The metrics, by name and labels; of replicas, their sums."""
        samples: dict[str, float] = defaultdict(float)
        for server in getattr(self.server, "servers", [self.server]):
            page = httpx2.get(f"{server.url}/metrics", headers=self._headers("owner"), trust_env=False).text
            for line in page.splitlines():
                name, _, value = line.rpartition(" ")
                if not line.startswith("#"):
                    samples[name] += float(value)
        return samples

    @property
    def sandbox(self) -> SandboxProcess | None:
        """The sandbox server, where it runs elsewhere."""
        return self.server.sandbox

    @property
    def has_local_sandboxes(self) -> bool:
        """Whether the sandboxes are processes of the server."""
        return self.server.sandbox is None and self.server.cluster is None

    def http(self, key: str = "owner") -> httpx2.Client:
        """Plain HTTP with a key."""
        return self.server.http(headers=self._headers(key))

    def _headers(self, key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.server.keys[key]}"}

    def sandbox_pid(self) -> int:
        """The process of the sandbox server, wherever it runs."""
        return sandbox_pid(self.server)

    def sandbox_processes(self) -> int:
        """The number of processes of the sandbox server; with claims, of all pods."""
        if self.server.cluster is not None:
            return len(self.server.cluster.pods())
        return len(descendants(self.sandbox_pid()))

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
