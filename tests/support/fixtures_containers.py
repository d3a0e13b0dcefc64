"""Fixtures for containers without HTTP: real sandboxes, a real store, and a clock that the test sets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import aclosing, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from antwort.config import CodeInterpreterSettings, ContainersSettings
from antwort.containers import Containers, ContainerSpec
from antwort.containers.sandboxes.port import ExecutionResult, Sandbox, Sandboxes
from antwort.engine.replicas.membership import OnlyReplica
from antwort.engine.stores import (
    FileRecord,
    Owner,
    PageQuery,
    Store,
)
from antwort.storage import open_store
from antwort.telemetry import Metrics

OWNER = Owner("tenant_a", "key-1")
OTHER_OWNER = Owner("tenant_b", "key-2")


async def chunks(*content: bytes) -> AsyncIterator[bytes]:
    """Content in chunks."""
    for chunk in content:
        yield chunk


class SharedSandboxes:
    """Sandboxes that are not closed with their user. Records what is held; `acquire` waits for `open`."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes
        self.held: list[Sandbox] = []
        self.swept: list[set[str]] = []
        self.sweep_fault: Exception | None = None
        self.open = asyncio.Event()
        self.open.set()
        self.acquiring = asyncio.Event()
        self.on_acquired: Callable[[], object] = lambda: None
        """Called before `acquire` returns."""
        self._changed = asyncio.Condition()

    async def is_stateful(self) -> bool:
        return True

    async def acquire(self, *, tenant: str, memory_limit: str, timeout: float) -> Sandbox:  # noqa: ASYNC109 - as the port has it
        self.acquiring.set()
        await self.open.wait()
        sandbox = await self._sandboxes.acquire(tenant=tenant, memory_limit=memory_limit, timeout=timeout)
        self.held.append(sandbox)
        self.on_acquired()
        return sandbox

    async def release(self, sandbox: Sandbox) -> None:
        if sandbox in self.held:
            self.held.remove(sandbox)
        async with self._changed:
            self._changed.notify_all()
        await self._sandboxes.release(sandbox)

    async def sweep(self, ended: Collection[str]) -> None:
        self.swept.append(set(ended))
        if self.sweep_fault is not None:
            raise self.sweep_fault
        await self._sandboxes.sweep(ended)

    async def all_released(self) -> None:
        """Wait until no sandbox is held."""
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(lambda: not self.held)

    async def kill_all(self) -> None:
        """End the held sandboxes behind the back of their containers."""
        for sandbox in self.held:
            await self._sandboxes.release(sandbox)

    async def aclose(self) -> None:
        pass


class ContainerEnv:
    """Containers, with their store, sandboxes, metrics and clock."""

    def __init__(self, sandboxes: SharedSandboxes, store: Store) -> None:
        self.sandboxes = sandboxes
        self.store = store
        self.now = 1_000_000.0
        self.metrics = Metrics()
        self._numbers = count(1)
        self.containers = self.restart()

    def restart(self, interpreter: CodeInterpreterSettings | None = None, **settings: Any) -> Containers:
        """Containers over the same store and sandboxes, as after a restart with these settings."""
        return Containers(
            self.store,
            self.sandboxes,
            ContainersSettings(**settings),
            interpreter or CodeInterpreterSettings(execution_timeout=20),
            self.metrics,
            OnlyReplica(f"rep_{next(self._numbers)}"),
            clock=lambda: self.now,
        )

    @classmethod
    @asynccontextmanager
    async def opened(cls, sandboxes: Sandboxes, path: Path) -> AsyncGenerator[ContainerEnv]:
        """Open a store, and close everything; no sandbox may be held then."""
        store = await open_store(f"sqlite:///{path / 'antwort.db'}", path / "blobs")
        env = cls(SharedSandboxes(sandboxes), store)
        try:
            yield env
        finally:
            await env.containers.aclose()
            await store.aclose()
        assert env.sandboxes.held == []

    async def create(self, **spec: Any) -> str:
        """Create a container; its id."""
        return (await self.containers.create(OWNER, ContainerSpec(name="x", **spec))).id

    async def upload(self, name: str, content: bytes, owner: Owner = OWNER) -> str:
        """Upload a file; its id."""
        record = FileRecord(
            id=f"file-{self.now}-{len(content)}", bytes=0, created_at=1, filename=name, purpose="user_data"
        )
        return (await self.store.create_file(owner, record, chunks(content))).id

    async def run(self, container_id: str, code: str) -> ExecutionResult:
        """Run code; its result."""
        async with aclosing(self.containers.execute(OWNER, container_id, code)) as steps:
            last = [step async for step in steps][-1]
        assert isinstance(last, ExecutionResult)
        return last

    async def paths(self, container_id: str) -> list[str]:
        """The files in a container, oldest first."""
        page = await self.containers.list_files(OWNER, container_id, PageQuery(order="asc", limit=100))
        return [file.path for file in page.data]

    async def content(self, container_id: str, file_id: str) -> bytes:
        """The content of a file."""
        async with aclosing(await self.containers.read_file(OWNER, container_id, file_id)) as content:
            return b"".join([chunk async for chunk in content])
