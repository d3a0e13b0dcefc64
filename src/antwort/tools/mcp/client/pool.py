"""Pool of sessions, one for each tenant, server and credentials. Runs in the thread of MCP sessions only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from antwort.net.fetch import FairResolver
from antwort.tools.mcp.client.session import McpSession
from antwort.tools.mcp.client.targets import (
    McpFault,
    McpToolResult,
    SessionLimits,
    Target,
    ToolListing,
    unreachable,
)

MAX_SESSIONS: Final = 256
MAX_TENANT_SESSIONS: Final = 32
MAX_TENANT_REQUESTS: Final = 64
"""At a time: a server that does not answer must not use up what other tenants need."""

_Key: TypeAlias = tuple[str, Target]


@dataclass
class _Entry:
    tenant: str
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a session is opened."""
    session: McpSession | None = None
    users: int = 0
    timer: asyncio.TimerHandle | None = None


class SessionPool:
    """Sessions that stay open for a while after their last request."""

    def __init__(self, limits: SessionLimits) -> None:
        self._limits = limits
        self._resolver = FairResolver()
        self._entries: dict[_Key, _Entry] = {}
        """The least recently used first."""
        self._ending: set[McpSession] = set()
        self._requests: dict[str, int] = {}

    async def list_tools(self, tenant: str, target: Target) -> ToolListing:
        """The tools of a server; `McpFault`."""
        async with self._slot(tenant), self._session(tenant, target) as session:
            try:
                return await session.list_tools()
            except McpFault as fault:
                if not _may_retry(fault):
                    raise
        async with self._slot(tenant), self._session(tenant, target) as session:
            return await session.list_tools()

    async def call_tool(self, tenant: str, target: Target, name: str, arguments: dict[str, Any]) -> McpToolResult:
        """Call a tool; `McpFault`. A server that does not know the session any more gets the call in a new one."""
        async with self._slot(tenant), self._session(tenant, target) as session:
            try:
                return await session.call_tool(name, arguments)
            except McpFault as fault:
                if not _may_retry(fault):
                    raise
        async with self._slot(tenant), self._session(tenant, target) as session:
            return await session.call_tool(name, arguments)

    async def aclose(self) -> None:
        """Close all sessions."""
        for entry in self._entries.values():
            self._end_entry(entry)
        self._entries.clear()
        await asyncio.gather(*(session.wait_closed() for session in self._ending))

    # ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def _slot(self, tenant: str) -> AsyncGenerator[None]:
        running = self._requests.get(tenant, 0)
        if running >= MAX_TENANT_REQUESTS:
            raise unreachable(f"{MAX_TENANT_REQUESTS} requests to MCP servers are running already; try again later")
        self._requests[tenant] = running + 1
        try:
            yield
        finally:
            self._requests[tenant] -= 1
            if not self._requests[tenant]:
                del self._requests[tenant]

    @asynccontextmanager
    async def _session(self, tenant: str, target: Target) -> AsyncGenerator[McpSession]:
        """A usable session. It is not closed while it is used."""
        key = (tenant, target)
        entry = self._entries.pop(key, None) or self._new_entry(tenant)
        self._entries[key] = entry
        entry.users += 1
        if entry.timer is not None:
            entry.timer.cancel()
        try:
            async with entry.lock:
                session = entry.session
                if session is None or not session.is_usable:
                    entry.session = None
                    session = McpSession(target, self._limits, self._resolver.of(tenant))
                    await session.open()
                    entry.session = session
            session.users += 1
            try:
                yield session
            finally:
                session.users -= 1
                if not (session.users or session.is_usable):
                    self._end(session)
        finally:
            entry.users -= 1
            if not entry.users:
                self._release(key, entry)

    def _release(self, key: _Key, entry: _Entry) -> None:
        if entry.session is None or not entry.session.is_usable:
            self._drop(key, entry)
        else:
            loop = asyncio.get_running_loop()
            entry.timer = loop.call_later(self._limits.idle_timeout, self._drop, key, entry)

    def _drop(self, key: _Key, entry: _Entry) -> None:
        if not entry.users and self._entries.get(key) is entry:
            del self._entries[key]
            self._end_entry(entry)

    def _new_entry(self, tenant: str) -> _Entry:
        """An entry for a session. At a limit, the least recently used idle session is closed."""
        of_tenant = [(key, entry) for key, entry in self._entries.items() if entry.tenant == tenant]
        if len(of_tenant) >= MAX_TENANT_SESSIONS:
            self._drop_idle(of_tenant)
        elif len(self._entries) >= MAX_SESSIONS:
            self._drop_idle(list(self._entries.items()))
        return _Entry(tenant)

    def _drop_idle(self, entries: list[tuple[_Key, _Entry]]) -> None:
        idle = next(((key, entry) for key, entry in entries if not entry.users), None)
        if idle is None:
            raise unreachable("too many sessions with MCP servers are in use; try again later")
        self._drop(*idle)

    def _end_entry(self, entry: _Entry) -> None:
        if entry.timer is not None:
            entry.timer.cancel()
        session, entry.session = entry.session, None
        if session is not None:
            self._end(session)

    def _end(self, session: McpSession) -> None:
        session.close()
        self._ending.add(session)
        task = asyncio.ensure_future(session.wait_closed())
        task.add_done_callback(lambda _: self._ending.discard(session))


def _may_retry(fault: McpFault) -> bool:
    """Whether the server did not read the request."""
    return fault.is_unknown_session
