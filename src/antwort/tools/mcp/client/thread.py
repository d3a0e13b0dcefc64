"""`McpClient`: MCP sessions in a thread with an event loop of its own.

The SDK takes more than half a second to import, and parses what servers send. Neither is done on the event loop of the
server: a hostile server delays sessions of others at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeVar

from antwort.tools.mcp.client.targets import McpToolResult, SessionLimits, Target, ToolListing

if TYPE_CHECKING:
    from antwort.tools.mcp.client.pool import SessionPool

T = TypeVar("T")

_SDK_LOGGERS: Final = ("mcp", "client")


class McpClient:
    """Lists and calls the tools of MCP servers. Used from one event loop."""

    def __init__(self, limits: SessionLimits) -> None:
        self._limits = limits
        self._thread: threading.Thread | None = None
        self._started: Future[tuple[asyncio.AbstractEventLoop, SessionPool]] = Future()
        self._stopping: asyncio.Event | None = None

    async def list_tools(self, tenant: str, target: Target) -> ToolListing:
        """The tools of a server, cached as long as the server allows; `McpFault`."""
        return await self._run(lambda pool: pool.list_tools(tenant, target))

    async def call_tool(self, tenant: str, target: Target, name: str, arguments: dict[str, Any]) -> McpToolResult:
        """Call a tool; `McpFault` where the server or the connection fails. Cancelling cancels the call."""
        return await self._run(lambda pool: pool.call_tool(tenant, target, name, arguments))

    async def aclose(self) -> None:
        """Close all sessions and end the thread."""
        if self._thread is None:
            return
        with contextlib.suppress(ImportError):
            loop, _ = await asyncio.wrap_future(self._started)
            assert self._stopping is not None  # noqa: S101 - set before it has started
            loop.call_soon_threadsafe(self._stopping.set)
        await asyncio.to_thread(self._thread.join)
        self._thread = None

    async def _run(self, make: Callable[[SessionPool], Coroutine[Any, Any, T]]) -> T:
        if self._thread is None:
            self._thread = threading.Thread(target=self._main, name="mcp-sessions", daemon=True)
            self._thread.start()
        loop, pool = await asyncio.shield(asyncio.wrap_future(self._started))
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(make(pool), loop))

    def _main(self) -> None:
        try:
            from antwort.tools.mcp.client.pool import SessionPool  # noqa: PLC0415 - imports the SDK, slowly
        except ImportError as error:
            self._started.set_exception(error)
            return
        for name in _SDK_LOGGERS:  # it logs what servers send
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        pool = SessionPool(self._limits)

        async def serve() -> None:
            self._stopping = asyncio.Event()
            self._started.set_result((asyncio.get_running_loop(), pool))
            await self._stopping.wait()
            await pool.aclose()

        asyncio.run(serve())
