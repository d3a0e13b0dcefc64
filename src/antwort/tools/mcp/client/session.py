"""`McpSession`: one session with a server, through the official SDK. Runs in the thread of MCP sessions only.

A session lives in one task, because the SDK's context managers must be left in the task that entered them. Calls are
made from other tasks of the same event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, TypeAlias, cast

import httpx2
import mcp_types as types
from mcp.client.client import Client
from mcp.client.session import IncomingMessage
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from antwort.net.fetch import FetchError, Resolver
from antwort.tools.mcp.client.content import clean_arguments, tool_result
from antwort.tools.mcp.client.listing import MAX_PAGES, check_tools
from antwort.tools.mcp.client.stdio import stdio_transport
from antwort.tools.mcp.client.targets import (
    INTERNAL_ERROR,
    HttpTarget,
    McpFault,
    McpToolResult,
    SessionLimits,
    StdioTarget,
    Target,
    ToolListing,
    protocol_error,
    timed_out,
    unreachable,
)
from antwort.tools.mcp.client.transport import GuardedTransport, HttpTraffic, recorded

_Kind: TypeAlias = Literal["streamable_http", "sse", "stdio"]

MAX_LISTING_AGE: Final = 300.0
"""Seconds after which tools are listed again, whatever the server says."""
_CLOSE_TIMEOUT: Final = 5.0
_MAX_MESSAGE_CHARS: Final = 500
_SSE_STATUSES: Final = frozenset({400, 404, 405, 406, 415, 501})
"""Answers to a POST of servers that speak the older transport only."""
_CLIENT_INFO: Final = types.Implementation(name="antwort", version="1")


class McpSession:
    """A session. One that is closed, or retired, is not used for further calls."""

    def __init__(self, target: Target, limits: SessionLimits, resolver: Resolver) -> None:
        self._target = target
        self._resolver = resolver
        self._limits = limits
        self._task: asyncio.Task[None] | None = None
        self._client: Client | None = None
        self._closing = asyncio.Event()
        self._listing: ToolListing | None = None
        self._listed_until = 0.0
        self._changes = 0
        """How often the server has said that its tools have changed."""
        self._listing_lock = asyncio.Lock()
        self._exchange = HttpTraffic()
        self.users = 0
        """Requests that run now, as the pool counts them."""
        self.is_retired = False
        """Whether it is not used any more, because it may hang or be broken. It is closed when they end."""

    @property
    def is_usable(self) -> bool:
        is_running = self._task is not None and not self._task.done()
        return is_running and not self.is_retired and not self._closing.is_set()

    async def open(self) -> None:
        """Connect and negotiate; `McpFault`."""
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._serve(opened))
        try:
            async with asyncio.timeout(self._limits.connect_timeout):
                await asyncio.shield(opened)
        except TimeoutError as error:
            raise timed_out(f"no session within {self._limits.connect_timeout:g} s") from error
        finally:
            if not opened.done() or opened.exception() is not None:
                opened.cancel()
                self.close()

    def close(self) -> None:
        """End the session, and tell the server so. A server that does not answer gets five seconds for that."""
        self._closing.set()
        task = self._task
        if task is not None and not task.done():
            if self._client is None:
                task.cancel()
            else:
                timer = asyncio.get_running_loop().call_later(_CLOSE_TIMEOUT, task.cancel)
                task.add_done_callback(lambda _: timer.cancel())

    async def wait_closed(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def list_tools(self) -> ToolListing:
        """The tools: those of the last listing, unless the server has said that they changed, or it is too old."""
        async with self._listing_lock:
            if self._listing is None or time.monotonic() >= self._listed_until:
                with self._faults(self._limits.connect_timeout, "the tools were not listed", self._limits.max_bytes):
                    async with asyncio.timeout(self._limits.connect_timeout):
                        changes = self._changes
                        listing = await self._list_all()
                        self._listing = listing if changes == self._changes else None  # else it is out of date already
                        return listing
            return self._listing

    async def _list_all(self) -> ToolListing:
        client = self._connected
        is_modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
        max_age, found, cursor = MAX_LISTING_AGE, list[types.Tool](), None
        for _ in range(MAX_PAGES):
            page = await client.session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
            found += page.tools
            if is_modern:
                max_age = min(max_age, page.ttl_ms / 1000)
            cursor = page.next_cursor
            if cursor is None:
                break
        else:
            raise protocol_error(INTERNAL_ERROR, f"the list of tools has more than {MAX_PAGES} pages")
        self._listed_until = time.monotonic() + max_age
        return check_tools(found)

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> McpToolResult:
        """Call a tool; `McpFault`. The result is not validated against a schema, which the server could make costly."""
        with self._faults(self._limits.timeout, "the tool did not answer"):
            given = clean_arguments(arguments)
            request = types.CallToolRequest(params=types.CallToolRequestParams(name=name, arguments=given))
            async with asyncio.timeout(self._limits.timeout):
                return tool_result(await self._connected.session.send_request(request, types.CallToolResult))

    @property
    def _connected(self) -> Client:
        if self._client is None:
            raise unreachable("the session is closed")
        return self._client

    @contextlib.contextmanager
    def _faults(self, seconds: float, what: str, max_bytes: int | None = None) -> Generator[None]:
        """Translate exceptions of the SDK to `McpFault`. `max_bytes` limits all answers together."""
        with recorded(max_bytes) as exchange:
            try:
                yield
            except TimeoutError as error:
                self.is_retired = True
                raise timed_out(f"{what} within {seconds:g} s") from error
            except Exception as error:
                fault = self._fault(error, exchange)
                is_closed = isinstance(error, MCPError) and error.error.code == types.CONNECTION_CLOSED
                if fault.is_unknown_session or exchange.is_broken or is_closed:
                    self.is_retired = True
                raise fault from error

    def _fault(self, error: BaseException, exchange: HttpTraffic) -> McpFault:
        if isinstance(error, McpFault):
            return error
        seen = exchange.fault() or (None if self.is_usable else self._exchange.fault())
        if seen is not None:
            return seen
        return _translated(_cause(error))

    # ── the task of the session ──────────────────────────────────────────────────────────────────────────────────────

    async def _serve(self, opened: asyncio.Future[None]) -> None:
        fault: McpFault | None = None
        for kind in self._kinds():
            with recorded() as exchange:
                self._exchange = exchange
                try:
                    async with self._connect(kind) as client:
                        exchange.status = None  # of a probe that the server did not know
                        self._client = client
                        if not opened.done():
                            opened.set_result(None)
                        await self._closing.wait()
                except Exception as error:  # noqa: BLE001 - the SDK, which may raise anything; it ends this session
                    found = self._fault(error, exchange)
                    fault = fault or found
                    if found.kind == "http_error" and found.code in _SSE_STATUSES:
                        continue
                break
        self._client = None
        if not opened.done():
            opened.set_exception(fault or unreachable("the server ended the session"))

    def _kinds(self) -> tuple[_Kind, ...]:
        return ("stdio",) if isinstance(self._target, StdioTarget) else ("streamable_http", "sse")

    @asynccontextmanager
    async def _connect(self, kind: _Kind) -> AsyncGenerator[Client]:
        async with contextlib.AsyncExitStack() as stack:
            target = self._target
            if isinstance(target, StdioTarget):
                transport = stdio_transport(target, self._limits)
            elif kind == "sse":
                transport = sse_client(
                    target.url, httpx_client_factory=_ClientFactory(lambda: self._http_client(target))
                )
            else:
                http = await stack.enter_async_context(self._http_client(target))
                transport = streamable_http_client(
                    target.url, http_client=http, max_sse_event_size=self._limits.max_bytes
                )
            client = Client(
                transport,
                mode="legacy" if kind == "sse" else "auto",
                cache=None,
                client_info=_CLIENT_INFO,
                message_handler=self._on_message,
            )
            yield await stack.enter_async_context(client)

    def _http_client(self, target: HttpTarget) -> httpx2.AsyncClient:
        limits = self._limits
        read_timeout = limits.timeout + limits.idle_timeout  # streams of events are silent while nothing happens
        return httpx2.AsyncClient(
            headers={"accept-encoding": "identity", "user-agent": "antwort", **dict(target.headers)},
            transport=GuardedTransport(target, limits, self._resolver),
            timeout=httpx2.Timeout(limits.connect_timeout, read=read_timeout),
            trust_env=False,
        )

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._listing = None
            self._changes += 1


class _ClientFactory:
    """Makes the HTTP client of the older transport, which would set other time limits."""

    def __init__(self, make: Callable[[], httpx2.AsyncClient]) -> None:
        self._make = make

    def __call__(
        self,
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        del headers, timeout, auth
        return self._make()


def _cause(error: BaseException) -> BaseException:
    """The first exception of a group: task groups of the SDK wrap what ended them."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def _translated(error: BaseException) -> McpFault:
    match error:
        case McpFault():
            return error
        case MCPError() as refused:
            return protocol_error(refused.error.code, _shortened(refused.error.message))
        case ValidationError() as invalid:
            first = invalid.errors(include_url=False, include_input=False, include_context=False)[0]
            place = ".".join(map(str, first["loc"]))
            return protocol_error(INTERNAL_ERROR, _shortened(f"the answer is not valid: {place}: {first['msg']}"))
        case FetchError() as refused:
            return unreachable(str(refused))
        case httpx2.HTTPError() | OSError():
            return unreachable("no connection")
        case other:
            return protocol_error(INTERNAL_ERROR, f"the session failed ({type(other).__name__})")


def _shortened(message: str) -> str:
    """A message of the server, on one line."""
    text = " ".join(message.replace("\0", " ").split())
    return text if len(text) <= _MAX_MESSAGE_CHARS else f"{text[:_MAX_MESSAGE_CHARS]}…"
