"""Connections that only wait end, too many make room, and the health check is always answered."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket

import pytest
import uvicorn

from antwort.sandbox.server.connections import LARGEST_HEAD, RESERVE, ConnectionLimiter, OverloadMiddleware

pytestmark = pytest.mark.anyio

MOST = 20


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Served:
    """A real server on a socket, whose requests stand still until they are let go."""

    def __init__(self, port: int, lobby: ConnectionLimiter) -> None:
        self.port = port
        self.lobby = lobby
        self.go_on = asyncio.Event()
        self._open = contextlib.AsyncExitStack()

    async def app(self, scope, receive, send) -> None:
        if scope["path"] == "/slow":
            await self.go_on.wait()
        if scope["path"] == "/endless":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(1_000):  # more than the kernel keeps for a client
                await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        self._open.push_async_callback(_close, writer)
        return reader, writer

    async def ask(self, path: str, headers: str = "") -> bytes:
        reader, writer = await self.connect()
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n".encode())
        async with asyncio.timeout(10):
            return await reader.read()

    async def busy(self, path: str = "/slow") -> asyncio.StreamReader:
        reader, writer = await self.connect()
        before = self.working
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await until(lambda: self.working > before)
        return reader

    @property
    def working(self) -> int:
        return len(self.lobby._connections) - len(self.lobby._waiting)

    async def aclose(self) -> None:
        self.go_on.set()
        await self._open.aclose()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def until(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - nobody sends an event for it
            await asyncio.sleep(0.01)


HASTY = pytest.mark.parametrize("served", [{"head_seconds": 0.3, "stalled_seconds": 0.3}], indirect=True)
"""A server that waits for no time worth mentioning."""


@pytest.fixture
async def served(request):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        lobby = ConnectionLimiter(MOST, **getattr(request, "param", {}))
        made = Served(listener.getsockname()[1], lobby)
        config = uvicorn.Config(
            OverloadMiddleware(made.app, lobby), http=lobby.protocol(), ws="none", lifespan="off", log_config=None
        )
        config.timeout_graceful_shutdown = 1
        server = uvicorn.Server(config)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        await until(lambda: server.started)
        yield made
        await made.aclose()
        server.should_exit = True
        await running


async def test_a_request_is_answered_and_the_connection_kept(served):
    reader, writer = await served.connect()
    for _ in range(3):
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert await reader.readexactly(2) == b"ok"
    await until(lambda: served.working == 0)


async def test_requests_sent_at_once_are_answered_in_turn(served):
    reader, writer = await served.connect()
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5)
    for _ in range(5):
        await reader.readuntil(b"\r\n\r\nok")
    await until(lambda: served.working == 0)


@HASTY
@pytest.mark.parametrize("sent", [b"", b"GET /hea", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "], ids=repr)
async def test_whoever_sends_no_request_is_let_go(served, sent):
    reader, writer = await served.connect()
    writer.write(sent)
    async with asyncio.timeout(10):
        assert await reader.read() == b""


@HASTY
async def test_so_is_whoever_drips_a_second_request(served):
    """The first byte of it must not stop the clock."""
    reader, writer = await served.connect()
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.readuntil(b"ok")
    with contextlib.suppress(OSError):
        async with asyncio.timeout(10):
            while not reader.at_eof():
                writer.write(b"G")
                await writer.drain()
                await asyncio.sleep(0.05)
    assert not served.lobby._connections


@HASTY
async def test_a_request_under_way_has_all_its_time(served):
    reader = await served.busy()
    await asyncio.sleep(1)
    served.go_on.set()
    assert (await reader.readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200")


@HASTY
async def test_whoever_never_reads_is_let_go(served):
    await served.busy("/endless")
    await until(lambda: not served.lobby._connections)


async def test_a_head_without_end_is_refused(served):
    reader, writer = await served.connect()
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * (1 + LARGEST_HEAD // 6))
    assert (await reader.read()).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("flood", [b"X: " + b"x" * 10_000 + b"\r\n", b"x" * 10_000], ids=["trailers", "one trailer"])
async def test_nor_is_one_behind_a_body(served, flood):
    reader, writer = await served.connect()
    writer.write(b"POST /slow HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX: ")
    with contextlib.suppress(OSError):
        for _ in range(3 * LARGEST_HEAD // len(flood)):
            writer.write(flood)
            await writer.drain()
            await asyncio.sleep(0.001)
    await until(lambda: not served.lobby._connections)
    with contextlib.suppress(OSError):
        assert await reader.read() == b""


async def test_a_large_body_is_no_head(served):
    reader, writer = await served.connect()
    body = b"x" * (4 * LARGEST_HEAD)
    writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert (await reader.readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200")


async def test_a_thousand_that_wait_keep_nobody_out(served):
    waiting = [await served.connect() for _ in range(5 * MOST)]
    assert (await served.ask("/health")).startswith(b"HTTP/1.1 200")
    assert (await served.ask("/")).startswith(b"HTTP/1.1 200")
    await until(lambda: len(served.lobby._connections) <= MOST)
    first, _ = waiting[0]
    assert await first.read() == b""
    last, writer = waiting[-1]
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await last.readuntil(b"ok")).startswith(b"HTTP/1.1 200")


async def test_when_all_work_the_rest_are_told_but_for_the_health_check(served):
    for _ in range(MOST):
        await served.busy()
    answer = await served.ask("/")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503")
    assert b"retry-after: 1" in head.lower()
    assert "under way" in json.loads(body)["error"]
    assert (await served.ask("/health")).startswith(b"HTTP/1.1 200")
    served.go_on.set()
    await until(lambda: served.working == 0)
    assert (await served.ask("/")).startswith(b"HTTP/1.1 200")


async def test_the_reserve_has_an_end_too_and_waiting_does_not_fill_it(served):
    for _ in range(MOST):
        await served.busy()
    for _ in range(2 * RESERVE):
        await served.connect()
    assert (await served.ask("/health")).startswith(b"HTTP/1.1 200")
    assert len(served.lobby._connections) <= MOST + RESERVE
