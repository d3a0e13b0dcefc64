"""HTTP/1.1 client transport for httpx2 on asyncio sockets and httptools: keep-alive, time-outs, back-pressure.

A model sends one chunk per token. httpx2's own transport needs 50 µs for each and scans all of its connections for
each request, which was most of the server's CPU time. This transport has only what a model needs: plain and TLS
connections that are reused, time-outs, and flow control. It supports neither proxies nor HTTP/2.

    HttpTransport   finds or opens a connection for a request, and keeps idle connections; streams uploads
    _Connection     one socket: sends a request, parses the response, wakes the task that waits for it
    _ResponseBody   the body of the response, for httpx2
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias, cast

import httptools
import httpx2

from antwort.net.tls import client_ssl_context

Origin: TypeAlias = tuple[str, str, int]
Headers: TypeAlias = list[tuple[bytes, bytes]]
Timeouts: TypeAlias = Mapping[str, float | None]
Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses to connect to, by host and port."""

_DEFAULT_PORTS = {"http": 80, "https": 443}
_MAX_HEAD_BYTES = 100 * 1024
_MAX_UNPARSED_BYTES = 512 * 1024  # of chunk extensions or trailers; above what one read of a socket returns
_HIGH_WATER = 256 * 1024  # unread bytes of a body above which the socket is not read
_STALE_SECONDS = 1.0  # a peer that closes a reused connection within this time had closed it before the request
_INTERIM_STATUSES = range(100, 200)
_CONTINUE = 100
_IDEMPOTENT = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PUT"})
_FORBIDDEN_IN_HEADER = re.compile(rb"[\r\n\0]")


class HttpTransport(httpx2.AsyncBaseTransport):
    """Must be used in one event loop. Keeps up to `max_idle` idle connections for `idle_timeout` seconds each.

    With `uds` every connection goes to that Unix socket, whatever the host of the URL is. With `resolve` connections go
    to the addresses that it returns, in this order, and to no other; its errors are those of the request.
    """

    def __init__(
        self,
        *,
        max_idle: int = 64,
        idle_timeout: float = 30.0,
        uds: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        self._uds = uds
        self._resolve = resolve
        self._max_idle = max_idle
        self._idle_timeout = idle_timeout
        self._ssl_context = ssl_context
        self._open: set[_Connection] = set()
        self._idle: dict[_Connection, None] = {}  # in the order in which they became idle

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request; returns when the head of the response is complete.

        If the peer closes a reused connection before it sends any byte, an idempotent request is sent again once on a
        new connection: the peer most likely had closed the idle connection. A POST is not: it may have been received.
        """
        origin, data = _origin(request.url), _encode_head(request)
        timeouts: Timeouts = request.extensions.get("timeout", {})
        if request.headers.get("transfer-encoding", "").lower() == "chunked":
            return await self._upload(origin, request, data, timeouts)
        data += await request.aread()
        reused = self._take_idle(origin)
        connection = reused or await self._connect(origin, timeouts)
        try:
            return await self._exchange(connection, request, data, timeouts)
        except httpx2.TransportError as error:
            if reused is None or not reused.was_stale or request.method not in _IDEMPOTENT:
                raise
            try:
                connection = await self._connect(origin, timeouts)
            except httpx2.TransportError:
                raise error from None  # not a connect error: the peer may have received the request
        return await self._exchange(connection, request, data, timeouts)

    async def _upload(
        self, origin: Origin, request: httpx2.Request, head: bytes, timeouts: Timeouts
    ) -> httpx2.Response:
        """Send a request whose body is a stream, on a connection of its own: it cannot be sent a second time.

        With `expect: 100-continue` the stream is not read before the peer asks for it, without a time-out.
        """
        connection, write_timeout = await self._connect(origin, timeouts), timeouts.get("write")
        try:
            await connection.send(head, write_timeout)
            if request.headers.get("expect", "").lower() != "100-continue" or await connection.receive_continue():
                async for chunk in cast("httpx2.AsyncByteStream", request.stream):
                    data = b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunk else b""
                    if not await connection.send_more(data, write_timeout):
                        break
                else:
                    await connection.send_more(b"0\r\n\r\n", write_timeout)
        except BaseException:
            connection.close()
            raise
        return await self._receive(connection, timeouts, _Connection.close)

    async def aclose(self) -> None:
        """Close all connections."""
        for connection in list(self._open):
            connection.close()

    async def _exchange(
        self, connection: _Connection, request: httpx2.Request, data: bytes, timeouts: Timeouts
    ) -> httpx2.Response:
        try:
            await connection.send(data, timeouts.get("write"))
        except BaseException:
            connection.close()
            raise
        is_last = request.headers.get("connection", "").lower() == "close"
        release = _Connection.close if is_last else self._release
        return await self._receive(connection, timeouts, release)

    async def _receive(
        self, connection: _Connection, timeouts: Timeouts, release: Callable[[_Connection], None]
    ) -> httpx2.Response:
        try:
            status, headers = await connection.receive_head(timeouts.get("read"))
        except BaseException:
            connection.close()
            raise
        return httpx2.Response(status, headers=headers, stream=_ResponseBody(connection, release))

    def _take_idle(self, origin: Origin) -> _Connection | None:
        """The most recently used idle connection: the peer is least likely to have closed it."""
        for connection in reversed(self._idle):
            if connection.origin == origin:
                del self._idle[connection]
                return connection
        return None

    def _release(self, connection: _Connection) -> None:
        """Keep the connection for another request, or close it if it cannot be reused."""
        if not connection.is_reusable:
            connection.close()
            return
        self._idle[connection] = None
        connection.start_idle(self._idle_timeout)
        if len(self._idle) > self._max_idle:
            next(iter(self._idle)).close()

    def _remove(self, connection: _Connection) -> None:
        self._open.discard(connection)
        self._idle.pop(connection, None)

    async def _connect(self, origin: Origin, timeouts: Timeouts) -> _Connection:
        scheme, host, port = origin
        connection = _Connection(origin, self._open.add, self._remove)
        try:
            async with asyncio.timeout(timeouts.get("connect")):
                loop = asyncio.get_running_loop()
                if self._uds is not None:
                    await loop.create_unix_connection(lambda: connection, self._uds)
                else:
                    tls = await self._tls() if scheme == "https" else None
                    hosts = [host] if self._resolve is None else await self._resolve(host, port)
                    await _connect_to_first(connection, hosts, port, tls, server_hostname=host if tls else None)
        except TimeoutError as error:
            raise httpx2.ConnectTimeout("connect time-out") from error
        except (OSError, UnicodeError) as error:  # UnicodeError: a host name that IDNA cannot encode
            raise httpx2.ConnectError(str(error)) from error
        return connection

    async def _tls(self) -> ssl.SSLContext:
        """Created on first use, in a thread, because loading all certificates takes time."""
        if self._ssl_context is None:
            self._ssl_context = await asyncio.to_thread(client_ssl_context)
        return self._ssl_context


async def _connect_to_first(
    connection: _Connection, hosts: Sequence[str], port: int, tls: ssl.SSLContext | None, server_hostname: str | None
) -> None:
    """Connect to the first of these hosts that accepts the connection."""
    loop = asyncio.get_running_loop()
    for at, host in enumerate(hosts, 1):
        try:
            await loop.create_connection(lambda: connection, host, port, ssl=tls, server_hostname=server_hostname)
        except OSError:
            if at == len(hosts):
                raise
        else:
            return


class _UnexpectedResponse(Exception):
    """A second response to one request; the next request would take it for its own."""


class _Connection(asyncio.Protocol):
    """One socket. Its user sends a request, receives the head and the whole body, and only then sends another."""

    def __init__(
        self, origin: Origin, on_open: Callable[[_Connection], None], on_close: Callable[[_Connection], None]
    ) -> None:
        self.origin = origin
        self.was_stale = False
        self._on_open = on_open
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._waiting_since = 0.0
        self._sent_at = 0.0
        self._error: httpx2.TransportError | None = None
        self._is_writable = True
        self._is_reading = True
        self._reset()

    def _reset(self) -> None:
        """Prepare for the next response."""
        self._parser = httptools.HttpResponseParser(self)
        self._headers: Headers = []
        self._head_size = 0
        self._has_head = False
        self._status = 0
        self._chunks: list[bytes] = []
        self._unread = 0
        self._unparsed = 0  # bytes since the last part of the body: the head, chunk extensions, trailers
        self._is_complete = False
        self._keeps_alive = False
        self._is_awaited = False  # an interim response has asked for the body

    # ── called by the transport ──────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_reusable(self) -> bool:
        """Whether another request can be sent: the last one is sent, its response is complete, the peer keeps alive."""
        return self._keeps_alive and self._error is None and not self._transport.get_write_buffer_size()

    async def send(self, data: bytes, timeout: float | None) -> None:  # noqa: ASYNC109 - raises httpx2's own error
        """Send a request. Returns early if a response arrives before everything is sent: the request was rejected."""
        self._stop_timer()
        self._reset()
        self._sent_at = self._loop.time()
        await self.send_more(data, timeout)

    async def send_more(self, data: bytes, timeout: float | None) -> bool:  # noqa: ASYNC109 - raises httpx2's own error
        """Send a part of a request. Returns whether the peer still reads it: False once a response or an error came."""
        if self._has_head or self._error is not None:
            return False
        self._transport.write(data)
        if self._is_writable:
            return True
        try:
            async with asyncio.timeout(timeout):
                while not (self._is_writable or self._has_head or self._error):
                    await self._wait()
        except TimeoutError as error:
            raise httpx2.WriteTimeout("write time-out: the upstream does not read the request") from error
        return self._is_writable

    async def receive_continue(self) -> bool:
        """Wait until the peer asks for the body; False if it answers without it."""
        while not (self._is_awaited or self._has_head or self._error):
            await self._wait()
        return not self._has_head and self._error is None

    async def receive_head(self, read_timeout: float | None) -> tuple[int, Headers]:
        """Status and headers. `read_timeout` limits each wait for data until the end of the response."""
        self._watch(read_timeout)
        while not self._has_head:
            if self._error is not None:
                raise self._error
            await self._wait()
        return self._status, self._headers

    async def receive(self) -> bytes | None:
        """All of the body that has arrived; None after its end."""
        while not self._chunks:
            if self._is_complete:
                return None
            if self._error is not None:
                raise self._error
            await self._wait()
        data = b"".join(self._chunks)
        self._chunks, self._unread = [], 0
        self._resume_reading()
        return data

    def start_idle(self, seconds: float) -> None:
        """Close the connection after this time, unless it is used again."""
        self._resume_reading()  # to notice when the peer closes it
        self._stop_timer()
        self._timer = self._loop.call_later(seconds, self.close)

    def close(self) -> None:
        """Close at once and discard what has not arrived."""
        self._fail(httpx2.ReadError("the connection is closed"))

    def _resume_reading(self) -> None:
        if not self._is_reading and self._error is None:
            self._is_reading = True
            self._transport.resume_reading()

    # ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _wait(self) -> None:
        self._waiter, self._waiting_since = self._loop.create_future(), self._loop.time()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _watch(self, read_timeout: float | None) -> None:
        """Check the read time-out with one timer per response: a timer per chunk would cost more than the chunk."""
        self._stop_timer()
        if read_timeout is None:
            return
        waited = self._loop.time() - self._waiting_since if self._waiter is not None else 0.0
        if waited >= read_timeout:
            self._fail(httpx2.ReadTimeout("read time-out: the upstream sends nothing"))
        else:
            self._timer = self._loop.call_later(read_timeout - waited, self._watch, read_timeout)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fail(self, error: httpx2.TransportError) -> None:
        self._stop_timer()
        self._error = self._error or error
        self._on_close(self)  # before the event loop has closed it, so that no request takes it
        self._transport.abort()
        self._wake()

    # ── called by the event loop ─────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._on_open(self)

    def data_received(self, data: bytes) -> None:
        if self._is_complete:
            self._fail(httpx2.RemoteProtocolError("the upstream sent data after the end of its response"))
            return
        self._head_size += 0 if self._has_head else len(data)
        self._unparsed += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(httpx2.RemoteProtocolError(f"the upstream's response is not valid HTTP: {error}"))
            return
        if not self._has_head and self._head_size > _MAX_HEAD_BYTES:
            self._fail(httpx2.RemoteProtocolError(f"the upstream's headers exceed {_MAX_HEAD_BYTES} bytes"))
            return
        if self._has_head and self._unparsed > _MAX_UNPARSED_BYTES and not self._is_complete:
            self._fail(httpx2.RemoteProtocolError(f"the upstream sent {_MAX_UNPARSED_BYTES} bytes that are no body"))
            return
        if self._unread > _HIGH_WATER and self._is_reading:
            self._is_reading = False
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._error is None and not self._head_size:
            self.was_stale = self._loop.time() - self._sent_at < _STALE_SECONDS
        if self._has_head and exc is None and not self._error and self._ends_with_connection():
            self._is_complete = True
        self._fail(httpx2.RemoteProtocolError("the upstream closed the connection before the end of its response"))

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self._wake()

    def _ends_with_connection(self) -> bool:
        """Whether the response has neither a length nor chunks, so that the end of the connection ends it."""
        return not any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in self._headers)

    # ── called by the parser ─────────────────────────────────────────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        if self._is_complete:
            raise _UnexpectedResponse

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # a trailer is discarded
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        self._has_head = self._status not in _INTERIM_STATUSES

    def on_body(self, data: bytes) -> None:
        self._chunks.append(data)
        self._unread += len(data)
        self._unparsed = 0

    def on_message_complete(self) -> None:
        if self._has_head:
            self._is_complete, self._keeps_alive = True, self._parser.should_keep_alive()
        else:  # an interim response such as 100 Continue
            self._headers.clear()
            self._is_awaited = self._is_awaited or self._status == _CONTINUE


class _ResponseBody(httpx2.AsyncByteStream):
    """The body of a response. Closing it before its end closes the connection."""

    def __init__(self, connection: _Connection, release: Callable[[_Connection], None]) -> None:
        self._connection = connection
        self._release: Callable[[_Connection], None] | None = release

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        while (data := await self._connection.receive()) is not None:
            yield data

    async def aclose(self) -> None:
        if self._release is not None:
            release, self._release = self._release, None
            release(self._connection)


def _origin(url: httpx2.URL) -> Origin:
    if url.scheme not in _DEFAULT_PORTS or not url.host:
        raise httpx2.UnsupportedProtocol("the URL must start with http:// or https:// and have a host")
    # The name in ASCII, as in the header `host`: resolvers and `ssl` encode other names by an older standard.
    return url.scheme, url.raw_host.decode("ascii"), url.port or _DEFAULT_PORTS[url.scheme]


def _encode_head(request: httpx2.Request) -> bytes:
    headers = request.headers.raw
    if any(_FORBIDDEN_IN_HEADER.search(name) or _FORBIDDEN_IN_HEADER.search(value) for name, value in headers):
        raise httpx2.LocalProtocolError("a header must not contain line breaks or NUL")
    lines = [b"%b %b HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    lines += [b"%b: %b" % header for header in headers]
    return b"\r\n".join([*lines, b"", b""])
