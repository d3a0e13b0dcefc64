"""Connection limits: time-outs, size limits, eviction of idle connections, overload and the reserve."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from waiting import wait_until_async

from antwort.net.connections import MAX_HEAD_BYTES, RESERVE, ConnectionLimiter, OverloadMiddleware

pytestmark = pytest.mark.anyio

MAX_CONNECTIONS = 20


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request):
    return "asyncio", {"use_uvloop": request.param}


class Served:
    """A real server on a socket. Requests to /slow wait for `finish`."""

    def __init__(self, port: int, limiter: ConnectionLimiter) -> None:
        self.port = port
        self.limiter = limiter
        self.finish = asyncio.Event()
        self._open = contextlib.AsyncExitStack()

    async def app(self, scope, receive, send) -> None:
        if scope["path"] == "/slow":
            await self.finish.wait()
        if scope["path"] == "/endless":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(1_000):  # more than the kernel buffers for a client
                await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
        body = {"/large": b"x" * 30_000, "/long": b"x" * (32 << 20) + b"ok"}.get(scope["path"], b"ok")
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        self._open.push_async_callback(_close, writer)
        return reader, writer

    async def get(self, path: str, headers: str = "") -> bytes:
        reader, writer = await self.connect()
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n".encode())
        async with asyncio.timeout(10):
            return await reader.read()

    async def start_request(self, path: str = "/slow") -> asyncio.StreamReader:
        reader, writer = await self.connect()
        before = self.limiter.active
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await wait_until_async(lambda: self.limiter.active > before)
        return reader

    async def aclose(self) -> None:
        self.finish.set()
        await self._open.aclose()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


SHORT_TIMEOUTS = pytest.mark.parametrize("served", [{"head_timeout": 0.3, "stall_timeout": 0.3}], indirect=True)


@pytest.fixture
async def served(request):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        limiter = ConnectionLimiter(MAX_CONNECTIONS, **getattr(request, "param", {}))
        running_server = Served(listener.getsockname()[1], limiter)
        overloaded = PlainTextResponse("overloaded", 503)
        app = OverloadMiddleware(running_server.app, overloaded, exempt={"/health"})
        config = uvicorn.Config(
            app, http=limiter.protocol, ws="none", lifespan="off", log_config=None, timeout_keep_alive=60
        )
        config.timeout_graceful_shutdown = 1
        server = uvicorn.Server(config)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        await wait_until_async(lambda: server.started)
        yield running_server
        await running_server.aclose()
        server.should_exit = True
        await running


async def test_a_connection_is_kept_alive(served):
    reader, writer = await served.connect()
    for _ in range(3):
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert await reader.readexactly(2) == b"ok"
    await wait_until_async(lambda: served.limiter.active == 0)


async def test_pipelined_requests_are_answered_in_order(served):
    reader, writer = await served.connect()
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5)
    for _ in range(5):
        await reader.readuntil(b"\r\n\r\nok")
    await wait_until_async(lambda: served.limiter.active == 0)


@SHORT_TIMEOUTS
@pytest.mark.parametrize(
    "sent, response",
    [
        (b"", b""),
        (b"GET /hea", b"HTTP/1.1 408"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ", b"HTTP/1.1 408"),
    ],
    ids=repr,
)
async def test_an_incomplete_head_times_out(served, sent, response):
    reader, writer = await served.connect()
    writer.write(sent)
    async with asyncio.timeout(10):
        assert (await reader.read())[: len(response) or 1] == response


@SHORT_TIMEOUTS
async def test_a_second_head_that_arrives_byte_by_byte_times_out(served):
    """Its first byte must not stop the time-out."""
    reader, writer = await served.connect()
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.readuntil(b"ok")
    with contextlib.suppress(OSError):
        async with asyncio.timeout(10):
            while not reader.at_eof():
                writer.write(b"G")
                await writer.drain()
                await asyncio.sleep(0.05)
    assert not served.limiter.count


@SHORT_TIMEOUTS
async def test_a_running_request_has_no_time_limit(served):
    reader = await served.start_request()
    await asyncio.sleep(1)
    served.finish.set()
    assert (await reader.readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200")


@SHORT_TIMEOUTS
async def test_a_client_that_never_reads_is_disconnected(served):
    await served.start_request("/endless")
    await wait_until_async(lambda: not served.limiter.count)


async def test_a_head_above_the_limit_is_rejected(served):
    reader, writer = await served.connect()
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * (1 + MAX_HEAD_BYTES // 6))
    assert (await reader.read()).startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize("flood", [b"X: " + b"x" * 10_000 + b"\r\n", b"x" * 10_000], ids=["trailers", "one trailer"])
async def test_trailers_above_the_limit_are_rejected(served, flood):
    reader, writer = await served.connect()
    writer.write(b"POST /slow HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX: ")
    with contextlib.suppress(OSError):
        for _ in range(3 * MAX_HEAD_BYTES // len(flood)):
            writer.write(flood)
            await writer.drain()
            await asyncio.sleep(0.001)
    await wait_until_async(lambda: not served.limiter.count)
    with contextlib.suppress(OSError):
        assert await reader.read() == b""


async def test_the_head_limit_does_not_apply_to_bodies(served):
    reader, writer = await served.connect()
    body = b"x" * (4 * MAX_HEAD_BYTES)
    writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert (await reader.readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200")


async def test_idle_connections_are_evicted_oldest_first(served):
    idle = [await served.connect() for _ in range(5 * MAX_CONNECTIONS)]
    assert (await served.get("/health")).startswith(b"HTTP/1.1 200")
    assert (await served.get("/")).startswith(b"HTTP/1.1 200")
    await wait_until_async(lambda: served.limiter.count <= MAX_CONNECTIONS)
    first, _ = idle[0]
    assert await first.read() == b""
    last, writer = idle[-1]
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await last.readuntil(b"ok")).startswith(b"HTTP/1.1 200")


async def test_when_all_connections_are_active_others_get_503_except_health_checks(served):
    for _ in range(MAX_CONNECTIONS):
        await served.start_request()
    head, _, body = (await served.get("/")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503")
    assert b"connection: close" in head
    assert body == b"overloaded"
    assert (await served.get("/health")).startswith(b"HTTP/1.1 200")
    served.finish.set()
    await wait_until_async(lambda: served.limiter.active == 0)
    assert (await served.get("/")).startswith(b"HTTP/1.1 200")


async def test_the_reserve_is_limited_and_idle_connections_do_not_fill_it(served):
    for _ in range(MAX_CONNECTIONS):
        await served.start_request()
    for _ in range(2 * RESERVE):
        await served.connect()
    assert (await served.get("/health")).startswith(b"HTTP/1.1 200")
    assert served.limiter.count <= MAX_CONNECTIONS + RESERVE


async def test_a_burst_above_the_limit_gets_503_and_not_an_abort(served):
    for _ in range(MAX_CONNECTIONS):
        await served.start_request()
    connections = [await served.connect() for _ in range(RESERVE // 2)]
    for _, writer in connections:
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    for reader, _ in connections:
        assert (await reader.read()).startswith(b"HTTP/1.1 503")


@SHORT_TIMEOUTS
async def test_a_client_that_still_sends_its_body_after_the_response_is_disconnected(served):
    reader, writer = await served.connect()
    writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
    await reader.readuntil(b"\r\n\r\nok")
    with contextlib.suppress(OSError):
        async with asyncio.timeout(10):
            while not (reader.at_eof() or writer.is_closing()):  # uvloop refuses a write to a closed connection
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.05)
    assert not served.limiter.count


@pytest.mark.parametrize("served", [{"stall_timeout": 0.3}], indirect=True)
async def test_a_client_that_does_not_read_the_end_of_a_response_is_disconnected(served):
    """The response is complete, and less than what pauses the writer is left in the buffer."""
    reader, writer = await served.connect()
    writer.write(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.readexactly(1)
    reader._transport.pause_reading()
    for _ in range(200):
        writer.write(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await wait_until_async(lambda: not served.limiter.count)


@SHORT_TIMEOUTS
async def test_a_slow_but_steady_reader_is_not_disconnected(served):
    reader, writer = await served.connect()
    writer.write(b"GET /long HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    size = 0
    while chunk := await reader.read(1 << 20):
        size += len(chunk)
        await asyncio.sleep(0.05)
    assert size > 32 << 20


async def test_an_error_within_a_response_only_closes_the_connection(served):
    reader, writer = await served.connect()
    writer.write(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n\x16\x03\x01\x02")
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
