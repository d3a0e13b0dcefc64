"""HTTP transport of MCP sessions: checked addresses, bounded answers, and the reason of a failure.

The SDK reports most failures as one JSON-RPC error. So each exchange records the status and the problem that the
transport saw, in a context variable that the SDK's tasks inherit from the call that they work for.

No proxy is used, because a proxy resolves names by itself. The SDK follows redirects within the origin only, and each
request is connected by this transport, so that no redirect leads to an unchecked address.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator
from contextvars import ContextVar
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, cast

import httpx2

from antwort.net.fetch import AddressPolicy, FetchError, GuardedResolver, Resolver, check_url
from antwort.net.http_transport import HttpTransport
from antwort.tools.mcp.client.targets import HttpTarget, McpFault, SessionLimits, unreachable

LOOPBACK: Final = ("127.0.0.0/8", "::1/128")
_SLICE: Final = 64 * 1024
_FREE_STREAMS: Final = 8
_STREAM_INTERVAL: Final = 1.0
"""Seconds before each further stream: a server that ends them at once would be connected to without a pause."""


@dataclass
class HttpTraffic:
    """What the transport saw while one operation ran."""

    status: int | None = None
    """The last status of 400 or above."""
    problem: str | None = None
    """Why a request got no answer, or why its answer was not read to the end."""
    is_broken: bool = False
    """Whether the connection failed, which ends the SDK's session."""
    had_session: bool = False
    """Whether the request that failed named a session."""
    max_bytes: int | None = None
    """Of all answers together."""
    received: int = 0

    def fault(self) -> McpFault | None:
        """The failure in HTTP, if it was one."""
        if self.problem is not None:
            return unreachable(self.problem)
        if self.status is None:
            return None
        try:
            phrase = HTTPStatus(self.status).phrase
        except ValueError:
            phrase = "unknown status"
        is_unknown = self.had_session and self.status == HTTPStatus.NOT_FOUND
        return McpFault("http_error", self.status, phrase, is_unknown_session=is_unknown)


_current: ContextVar[HttpTraffic | None] = ContextVar("mcp_exchange", default=None)


@contextlib.contextmanager
def recorded(max_bytes: int | None = None) -> Generator[HttpTraffic]:
    """Record what happens in HTTP to requests of this task, and of tasks that it starts, and limit their answers."""
    exchange = HttpTraffic(max_bytes=max_bytes)
    token = _current.set(exchange)
    try:
        yield exchange
    finally:
        _current.reset(token)


class AnswerTooLarge(httpx2.StreamError):
    """The answer exceeds the limit. The SDK ends only the request with it, and not the session."""


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Connects to checked addresses only, and reads at most `max_bytes` of an answer.

    A stream of events is an answer of many messages, each of which the SDK limits; the whole has sixteen times as much.
    """

    def __init__(self, target: HttpTarget, limits: SessionLimits, resolver: Resolver) -> None:
        self._max_bytes = limits.max_bytes
        resolve = None
        if not target.is_trusted:
            check_url(target.url)
            networks = [*limits.allow_networks, *(LOOPBACK if target.allows_loopback else ())]
            resolve = GuardedResolver(AddressPolicy(networks), resolver)
        self._transport = HttpTransport(max_idle=4, resolve=resolve)
        self._streams = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            self._streams += 1
            if self._streams > _FREE_STREAMS:
                await asyncio.sleep(_STREAM_INTERVAL)
        exchange = _current.get() or HttpTraffic()
        try:
            response = await self._transport.handle_async_request(request)
        except FetchError as error:
            exchange.problem, exchange.is_broken = str(error), True
            raise httpx2.ConnectError(str(error)) from error
        except httpx2.TransportError as error:
            exchange.problem, exchange.is_broken = f"{request.url.host} could not be read: {describe(error)}", True
            raise
        if response.status_code >= HTTPStatus.BAD_REQUEST:
            exchange.status = response.status_code
            exchange.had_session = "mcp-session-id" in request.headers
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            exchange.problem, exchange.is_broken = "the answer is compressed, which was not asked for", True
            raise httpx2.RemoteProtocolError(exchange.problem)
        is_events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        limit = self._max_bytes * (16 if is_events else 1)
        stream = _BoundedBody(cast("httpx2.AsyncByteStream", response.stream), limit, exchange)
        return httpx2.Response(response.status_code, headers=response.headers, stream=stream)

    async def aclose(self) -> None:
        await self._transport.aclose()


class _BoundedBody(httpx2.AsyncByteStream):
    """The body of an answer up to a limit."""

    def __init__(self, body: httpx2.AsyncByteStream, limit: int, exchange: HttpTraffic) -> None:
        self._body = body
        self._limit = limit
        self._exchange = exchange

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        size, exchange = 0, self._exchange
        async for chunk in self._body:
            size += len(chunk)
            exchange.received += len(chunk)
            limit = self._limit if size > self._limit else exchange.max_bytes
            if limit is not None and (size > limit or exchange.received > limit):
                exchange.problem = f"the answer exceeds {limit} bytes"
                raise AnswerTooLarge(exchange.problem)
            for start in range(0, len(chunk), _SLICE):
                yield chunk[start : start + _SLICE]

    async def aclose(self) -> None:
        await self._body.aclose()


def describe(error: httpx2.TransportError) -> str:
    """The kind of a failure, without addresses and headers."""
    match error:
        case httpx2.ConnectTimeout() | httpx2.ConnectError():
            return "no connection"
        case httpx2.TimeoutException():
            return "it does not answer"
        case _:
            return "the answer is incomplete or not valid HTTP"
