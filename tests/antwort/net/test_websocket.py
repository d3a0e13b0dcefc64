"""The protocol of WebSockets: floods of frames, keep-alive within a large message, frames after a violation."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest
import uvicorn
from waiting import wait_until_async
from websockets.frames import Frame, Opcode

from antwort.net.connections import ConnectionLimiter
from antwort.net.websocket import LimitedWebSocket, websocket_protocol

pytestmark = pytest.mark.anyio

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
LARGE = Frame(Opcode.TEXT, b"x" * 200_000).serialize(mask=True)
SMALL = Frame(Opcode.TEXT, b"").serialize(mask=True)


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request):
    return "asyncio", {"use_uvloop": request.param}


class Served:
    """A server with one open WebSocket, whose messages are in `received` when `may_receive` is set."""

    protocol: LimitedWebSocket
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def __init__(self) -> None:
        self.may_receive = asyncio.Event()
        self.received: list[str] = []

    async def app(self, scope, receive, send) -> None:
        del scope
        await receive()
        await send({"type": "websocket.accept"})
        await self.may_receive.wait()
        while (message := await receive())["type"] != "websocket.disconnect":
            self.received.append(message["text"])


@pytest.fixture
async def served():
    connections: list[LimitedWebSocket] = []
    running_server = Served()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        limiter = ConnectionLimiter(5, websocket_paths=[b"/"])
        protocol = websocket_protocol(limiter, message_timeout=60, oversize_message=b"{}")

        class Recorded(protocol):
            def connection_made(self, transport) -> None:
                super().connection_made(transport)
                connections.append(self)

        options = {"ws_per_message_deflate": False, "ws_ping_interval": None, "lifespan": "off", "log_config": None}
        options |= {"interface": "asgi3", "timeout_graceful_shutdown": 1}
        config = uvicorn.Config(running_server.app, http=limiter.protocol, ws=Recorded, **options)
        server = uvicorn.Server(config)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        await wait_until_async(lambda: server.started)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(HANDSHAKE)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        running_server.protocol, running_server.reader, running_server.writer = connections[0], reader, writer
        yield running_server
        running_server.may_receive.set()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        server.should_exit = True
        await running


@pytest.mark.parametrize("begun", [0, 50_000], ids=["whole", "in two parts"])
async def test_frames_behind_a_large_one_are_parsed_a_slice_at_a_time(served, begun):
    await wait_until_async(lambda: served.protocol.handshake_complete)
    if begun:
        served.protocol.data_received(LARGE[:begun])
    served.protocol.data_received(LARGE[begun:] + SMALL * 40_000)
    await wait_until_async(lambda: not served.protocol.queue.empty())

    assert served.protocol.queue.qsize() < 1_000
    served.may_receive.set()
    await wait_until_async(lambda: len(served.received) == 40_001)
    assert list(map(len, served.received[:2])) == [200_000, 0]


async def test_a_client_that_sends_a_large_message_answers_pings_behind_it(served):
    served.may_receive.set()
    served.writer.write(LARGE[:100_000])
    await wait_until_async(lambda: len(served.protocol.conn.reader.buffer) > 90_000)
    served.protocol.ping_timeout = 60
    served.protocol.keepalive_timeout()
    served.writer.write(LARGE[100_000:])
    await wait_until_async(lambda: served.received)

    served.protocol.keepalive_timeout()
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionError):
            assert await served.reader.read() == b""


@pytest.mark.parametrize(
    "opcode, data", [(Opcode.PING, b"x"), (Opcode.CLOSE, (1000).to_bytes(2, "big"))], ids=["ping", "close"]
)
async def test_a_frame_behind_text_that_is_not_utf8_is_no_fault_of_the_server(served, opcode, data):
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    served.may_receive.set()
    served.writer.write(Frame(Opcode.TEXT, b"\xff").serialize(mask=True) + Frame(opcode, data).serialize(mask=True))
    async with asyncio.timeout(10):
        sent = await served.reader.read()

    assert sent.endswith((1007 if opcode == Opcode.PING else 1000).to_bytes(2, "big"))
    assert not reported
