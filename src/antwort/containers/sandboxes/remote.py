"""Sandboxes of a server that runs somewhere: their leases are renewed here for as long as they are held."""

from __future__ import annotations

import asyncio
from typing import Final

from antwort.containers.sandboxes.client import RemoteSandbox, SandboxServer
from antwort.containers.sandboxes.port import Sandbox, SandboxTrouble

LEASE: Final = 180
"""Seconds after which a server ends a session that nobody has asked for."""

BEAT: Final = LEASE / 6
"""Seconds between two renewals; a few may be missed."""


class RemoteSandboxes:
    """`Sandboxes` of one server. Closing ends what is held; what a killed process held ends with its lease."""

    def __init__(self, server: SandboxServer, *, lease: int = LEASE, beat: float = BEAT) -> None:
        self._server = server
        self._lease = lease
        self._pause = beat
        self._held: set[RemoteSandbox] = set()
        self._beating: asyncio.Task[None] | None = None

    async def check(self) -> None:
        """Whether the server answers and lets us in; `SandboxTrouble` says what is wrong."""
        await self._server.ready()

    async def acquire(self, *, tenant: str, memory_limit: str, timeout: float) -> Sandbox:  # noqa: ASYNC109 - as the port has it
        session = await self._server.create(
            tenant=tenant, memory_limit=memory_limit, timeout=timeout, lease=self._lease
        )
        self._held.add(session)
        if self._beating is None:
            self._beating = asyncio.create_task(self._beat())
        return session

    async def release(self, sandbox: Sandbox) -> None:
        if isinstance(sandbox, RemoteSandbox):
            self._held.discard(sandbox)
            await sandbox.end()

    async def aclose(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        held, self._held = self._held, set()
        await asyncio.gather(*(session.end() for session in held), return_exceptions=True)
        await self._server.aclose()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._pause)
            for session in tuple(self._held):
                try:
                    await session.touch()
                except SandboxTrouble:  # whoever uses it next is told
                    continue
