"""HTTP/1.1 to upstreams on the event loop's own sockets, parsed in C. A transport for httpx2, which stays the client.

A model sends a piece for every token. httpx2's own transport takes fifty microseconds for each, and looks at all its
connections for each request: most of the server's time went there. This one does only what a model needs: plain or TLS,
connections that are used again, limits in time, and a reader who holds the sender back. No proxies, no HTTP/2.

    Transport       finds or opens a connection for a request, and keeps those that can be used again
    _Connection     one socket: sends a request, parses what comes, wakes whoever waits for it
    _Body           the answer's bytes, for httpx2
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import TypeAlias, cast

import httptools
import httpx2

Origin: TypeAlias = tuple[str, str, int]
Headers: TypeAlias = list[tuple[bytes, bytes]]
Limits: TypeAlias = Mapping[str, float | None]

_PORTS = {"http": 80, "https": 443}
_LARGEST_HEAD = 100 * 1024
_HELD = 256 * 1024  # bytes that nobody has taken yet; while there are more, the sender waits
_INTERIM = range(100, 200)
_UNFIT = re.compile(rb"[\r\n\0]")


class HttpTransport(httpx2.AsyncBaseTransport):
    """To be used in one event loop. Keeps so many idle connections, each for so many seconds.

    With `uds` all of them go to that Unix socket, whatever the address says.
    """

    def __init__(self, *, keep: int = 64, expiry: float = 30.0, uds: str | None = None) -> None:
        self._uds = uds
        self._keep = keep
        self._expiry = expiry
        self._open: set[_Connection] = set()
        self._idle: dict[_Connection, None] = {}  # a set in the order in which they became idle
        self._tls: ssl.SSLContext | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send it, and return when the head of the answer is there."""
        origin, data = _origin(request.url), _head(request) + await request.aread()
        limits: Limits = request.extensions.get("timeout", {})
        connection = self._take(origin) or await self._connect(origin, limits)
        try:
            await connection.send(data, limits.get("write"))
            status, headers = await connection.receive_head(limits.get("read"))
        except BaseException:
            connection.close()
            raise
        once = request.headers.get("connection", "").lower() == "close"
        release = _Connection.close if once else self._release
        return httpx2.Response(status, headers=headers, stream=_Body(connection, release))

    async def aclose(self) -> None:
        """Close all connections."""
        for connection in list(self._open):
            connection.close()

    def _take(self, origin: Origin) -> _Connection | None:
        """The one that was used last: the least likely to be given up by the other side just now."""
        for connection in reversed(self._idle):
            if connection.origin == origin:
                del self._idle[connection]
                return connection
        return None

    def _release(self, connection: _Connection) -> None:
        """Keep it for another request, if that is possible."""
        if not connection.reusable:
            connection.close()
            return
        self._idle[connection] = None
        connection.rest(self._expiry)
        if len(self._idle) > self._keep:
            next(iter(self._idle)).close()

    def _lost(self, connection: _Connection) -> None:
        self._open.discard(connection)
        self._idle.pop(connection, None)

    async def _connect(self, origin: Origin, limits: Limits) -> _Connection:
        scheme, host, port = origin
        connection = _Connection(origin, self._open.add, self._lost)
        try:
            async with asyncio.timeout(limits.get("connect")):
                loop = asyncio.get_running_loop()
                if self._uds is not None:
                    await loop.create_unix_connection(lambda: connection, self._uds)
                else:
                    tls = await self._context() if scheme == "https" else None
                    await loop.create_connection(lambda: connection, host, port, ssl=tls)
        except TimeoutError as error:
            raise httpx2.ConnectTimeout("the connection was not made in time") from error
        except (OSError, UnicodeError) as error:  # a name that cannot be looked up is one that cannot be written
            raise httpx2.ConnectError(str(error)) from error
        return connection

    async def _context(self) -> ssl.SSLContext:
        """Made when it is needed first, because reading all certificates takes a while."""
        if self._tls is None:
            self._tls = await asyncio.to_thread(httpx2.create_ssl_context)
        return self._tls


class _Unasked(Exception):
    """An answer that nobody asked for; whoever asked next would take it for theirs."""


class _Connection(asyncio.Protocol):
    """One socket. Whoever has it sends, receives the head, receives the body to its end, and only then sends again."""

    def __init__(
        self, origin: Origin, made: Callable[[_Connection], None], lost: Callable[[_Connection], None]
    ) -> None:
        self.origin = origin
        self._made = made
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._waiting_since = 0.0
        self._error: httpx2.TransportError | None = None
        self._writable = True
        self._reading = True
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: Headers = []
        self._head_size = 0
        self._has_head = False
        self._status = 0
        self._chunks: list[bytes] = []
        self._held = 0
        self._whole = False
        self._stays = False

    # ── for whoever asks ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def reusable(self) -> bool:
        """Whether another request can be sent: the one before is out, its answer whole, and nobody hangs up."""
        return self._stays and self._error is None and not self._transport.get_write_buffer_size()

    async def send(self, data: bytes, limit: float | None) -> None:
        """Send a request. Returns early where an answer comes before all is sent: that is a refusal."""
        self._stop_timer()
        self._begin()
        self._transport.write(data)
        if self._writable:
            return
        try:
            async with asyncio.timeout(limit):
                while not (self._writable or self._has_head or self._error):
                    await self._wait()
        except TimeoutError as error:
            raise httpx2.WriteTimeout("the upstream takes nothing") from error

    async def receive_head(self, silence: float | None) -> tuple[int, Headers]:
        """Status and headers. From now on the upstream may be silent for so long."""
        self._watch(silence)
        while not self._has_head:
            if self._error is not None:
                raise self._error
            await self._wait()
        return self._status, self._headers

    async def receive(self) -> bytes | None:
        """What has come of the body, all of it; None after the end."""
        while not self._chunks:
            if self._whole:
                return None
            if self._error is not None:
                raise self._error
            await self._wait()
        data = b"".join(self._chunks)
        self._chunks, self._held = [], 0
        self._read_on()
        return data

    def rest(self, seconds: float) -> None:
        """Nobody needs it now; after so long it is closed."""
        self._read_on()  # if the other side hangs up, that has to be heard
        self._stop_timer()
        self._timer = self._loop.call_later(seconds, self.close)

    def close(self) -> None:
        """At once: what is still to come is for nobody."""
        self._fail(httpx2.ReadError("the connection is closed"))

    def _read_on(self) -> None:
        if not self._reading and self._error is None:
            self._reading = True
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

    def _watch(self, silence: float | None) -> None:
        """One timer for a whole answer that looks now and then: one for each piece would cost more than the piece."""
        self._stop_timer()
        if silence is None:
            return
        waited = self._loop.time() - self._waiting_since if self._waiter is not None else 0.0
        if waited >= silence:
            self._fail(httpx2.ReadTimeout("the upstream is silent"))
        else:
            self._timer = self._loop.call_later(silence - waited, self._watch, silence)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fail(self, error: httpx2.TransportError) -> None:
        self._stop_timer()
        self._error = self._error or error
        self._lost(self)  # now, so that nobody is given it before the loop has closed it
        self._transport.abort()
        self._wake()

    # ── called by the event loop ─────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._made(self)

    def data_received(self, data: bytes) -> None:
        if self._whole:
            self._fail(httpx2.RemoteProtocolError("the upstream sent more than its answer"))
            return
        self._head_size += 0 if self._has_head else len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(httpx2.RemoteProtocolError(f"the upstream does not speak HTTP: {error}"))
            return
        if not self._has_head and self._head_size > _LARGEST_HEAD:
            self._fail(httpx2.RemoteProtocolError("the upstream's headers are too large"))
            return
        if self._held > _HELD and self._reading:
            self._reading = False
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._has_head and exc is None and not self._error and self._ends_with_connection():
            self._whole = True
        self._fail(httpx2.RemoteProtocolError("the upstream hung up before the end of its answer"))

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._wake()

    def _ends_with_connection(self) -> bool:
        """An answer that says neither how long it is nor where its pieces end."""
        return not any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in self._headers)

    # ── called by the parser ─────────────────────────────────────────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        if self._whole:
            raise _Unasked

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        self._has_head = self._status not in _INTERIM

    def on_body(self, data: bytes) -> None:
        self._chunks.append(data)
        self._held += len(data)

    def on_message_complete(self) -> None:
        if self._has_head:
            self._whole, self._stays = True, self._parser.should_keep_alive()
        else:  # a word in between, such as 100 Continue: the answer is yet to come
            self._headers.clear()


class _Body(httpx2.AsyncByteStream):
    """What is left of an answer. Closed before its end, it takes the connection with it."""

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
    if url.scheme not in _PORTS or not url.host:
        raise httpx2.UnsupportedProtocol("the address must begin with http:// or https://, and name a host")
    return url.scheme, url.host, url.port or _PORTS[url.scheme]


def _head(request: httpx2.Request) -> bytes:
    headers = request.headers.raw
    if any(_UNFIT.search(name) or _UNFIT.search(value) for name, value in headers):
        raise httpx2.LocalProtocolError("a header must not hold line breaks")
    lines = [b"%b %b HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    lines += [b"%b: %b" % header for header in headers]
    return b"\r\n".join([*lines, b"", b""])
