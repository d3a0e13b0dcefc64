"""A stage for containers without HTTP: real sandboxes, a real store, and a clock that a test turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from antwort.config import CodeInterpreterSettings, ContainersSettings
from antwort.containers import Containers, ContainerSpec, Executed
from antwort.containers.sandboxes import Sandbox, Sandboxes
from antwort.engine.stores import (
    FileRecord,
    Owner,
    PageQuery,
    Store,
)
from antwort.storage import open_store
from antwort.telemetry import Metrics

US = Owner("us", "key-1")
THEM = Owner("them", "key-2")


async def pieces(*content: bytes) -> AsyncIterator[bytes]:
    """A content on its way."""
    for piece in content:
        yield piece


class Borrowed:
    """Sandboxes of somebody who closes them; what is held of them is known here. `acquire` can be made to wait."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes
        self.held: list[Sandbox] = []
        self.open = asyncio.Event()
        self.open.set()
        self.asked = asyncio.Event()
        self._changed = asyncio.Condition()

    async def acquire(self, *, tenant: str, memory_limit: str, timeout: float) -> Sandbox:  # noqa: ASYNC109 - as the port has it
        self.asked.set()
        await self.open.wait()
        sandbox = await self._sandboxes.acquire(tenant=tenant, memory_limit=memory_limit, timeout=timeout)
        self.held.append(sandbox)
        return sandbox

    async def release(self, sandbox: Sandbox) -> None:
        if sandbox in self.held:
            self.held.remove(sandbox)
        async with self._changed:
            self._changed.notify_all()
        await self._sandboxes.release(sandbox)

    async def all_released(self) -> None:
        """Wait until none is held."""
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(lambda: not self.held)

    async def die(self) -> None:
        """All that are held end, and nobody has asked for it."""
        for sandbox in self.held:
            await self._sandboxes.release(sandbox)

    async def aclose(self) -> None:
        pass


class Place:
    """Containers, and what is around them."""

    def __init__(self, sandboxes: Borrowed, store: Store) -> None:
        self.sandboxes = sandboxes
        self.store = store
        self.now = 1_000_000.0
        self.metrics = Metrics()
        self.containers = self.made()

    def made(self, interpreter: CodeInterpreterSettings | None = None, **settings: Any) -> Containers:
        """Containers over the same store and sandboxes, as after a start with these settings."""
        return Containers(
            self.store,
            self.sandboxes,
            ContainersSettings(**settings),
            interpreter or CodeInterpreterSettings(execution_timeout=20),
            self.metrics,
            lambda: self.now,
        )

    @classmethod
    @asynccontextmanager
    async def opened(cls, sandboxes: Sandboxes, path: Path) -> AsyncGenerator[Place]:
        """Open a store, and close everything; nothing may be held then."""
        store = await open_store(f"sqlite:///{path / 'antwort.db'}", path / "blobs")
        place = cls(Borrowed(sandboxes), store)
        try:
            yield place
        finally:
            await place.containers.aclose()
            await store.aclose()
        assert place.sandboxes.held == []

    async def create(self, **wish: Any) -> str:
        """A container; its id."""
        return (await self.containers.create(US, ContainerSpec(name="x", **wish))).id

    async def upload(self, name: str, content: bytes, owner: Owner = US) -> str:
        """An uploaded file; its id."""
        record = FileRecord(
            id=f"file-{self.now}-{len(content)}", bytes=0, created_at=1, filename=name, purpose="user_data"
        )
        return (await self.store.create_file(owner, record, pieces(content))).id

    async def run(self, container_id: str, code: str) -> Executed:
        """Run code; what it came to."""
        async with aclosing(self.containers.execute(US, container_id, code)) as steps:
            last = [step async for step in steps][-1]
        assert isinstance(last, Executed)
        return last

    async def paths(self, container_id: str) -> list[str]:
        """The files in a container, oldest first."""
        page = await self.containers.list_files(US, container_id, PageQuery(order="asc", limit=100))
        return [file.path for file in page.data]

    async def content(self, container_id: str, file_id: str) -> bytes:
        """The content of a file."""
        async with aclosing(await self.containers.read_file(US, container_id, file_id)) as content:
            return b"".join([piece async for piece in content])
