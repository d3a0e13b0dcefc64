"""A stage for containers: the real server in front of sandboxes of either kind, and what it may leave behind."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
from sandbox_stage import SandboxProcess, sandbox_server
from server_stage import Server, serving

QUOTAS = {"max_containers": 6, "max_memory": 8 * 2**30, "max_disk": 8_000_000}

PLACES = ["jail", "url"]
"""Sandboxes of this machine's jail, as the server starts them itself; and those of a server that runs elsewhere."""


class Stage:
    """A server, and what runs its code."""

    def __init__(self, server: Server, sandbox: SandboxProcess | None) -> None:
        self.server = server
        self.sandbox = sandbox

    def http(self, key: str = "ours") -> httpx2.Client:
        """Plain HTTP with a key."""
        return self.server.http(headers={"authorization": f"Bearer {self.server.keys[key]}"})

    def sandbox_pid(self) -> int:
        """The process of the sandbox server, whoever has started it."""
        if self.sandbox is not None:
            return self.sandbox.process.pid
        (child,) = (pid for pid in children(self.server.process.pid) if b"sandbox" in command(pid))
        return child

    def temporary_files(self) -> list[str]:
        """What lies about where the server makes temporary files."""
        return sorted(path.name for path in (self.server.place.parent / "tmp").iterdir())

    def rows(self, question: str) -> list:
        """What the database says, asked past the server."""
        with closing(sqlite3.connect(self.server.place / ".antwort" / "antwort.db")) as database:
            return database.execute(question).fetchall()


@contextmanager
def staged(kind: str, place: Path, config: dict | None = None) -> Iterator[Stage]:
    """A server with sandboxes of a kind."""
    config = config or {}
    (place / "tmp").mkdir(parents=True, exist_ok=True)
    variables = {"TMPDIR": str(place / "tmp")}
    if kind == "jail":
        with serving(place / "server", config, variables) as server:
            yield Stage(server, None)
        return
    with sandbox_server(place) as sandbox:
        given = config.get("providers", {}).get("code_interpreter", {})
        interpreter = {**given, "sandbox_url": sandbox.url, "sandbox_token_env": "TEST_TOKEN"}
        whole = {**config, "providers": {"code_interpreter": interpreter}}
        with serving(place / "server", whole, {**variables, "TEST_TOKEN": sandbox.token}) as server:
            yield Stage(server, sandbox)


def execute(client: Any, container_id: str, code: str, **more: object) -> Any:
    """Code without a model: an extension, asked for through the SDK's own connection."""
    return client.post(f"/containers/{container_id}/exec", cast_to=object, body={"code": code, **more})


def files(client: Any, container_id: str) -> dict[str, Any]:
    """The files in a container, by path."""
    return {file.path: file for file in client.containers.files.list(container_id)}


def read(client: Any, container_id: str, file_id: str) -> bytes:
    """The content of one of them."""
    return client.containers.files.content.retrieve(file_id, container_id=container_id).read()


def children(pid: int) -> list[int]:
    """The processes that a process has started, and that still run."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for thread in threads for child in (thread / "children").read_text().split()]


def descendants(pid: int) -> list[int]:
    """Those, and those that they have started."""
    found = children(pid)
    for child in found:
        try:
            found.extend(children(child))
        except FileNotFoundError:
            continue  # it has ended meanwhile
    return found


def command(pid: int) -> bytes:
    """How a process was called."""
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def is_running(pid: int) -> bool:
    """Whether a process is there, and not only waited for."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
