"""Control channel: the setup messages, then only a valid reply to the current call is accepted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path

import pytest

from antwort.sandbox.container.call import Call
from antwort.sandbox.container.channel import Channel
from antwort.sandbox.container.reply import ExecReply
from antwort.sandbox.errors import CannotStart
from antwort.sandbox.jail import wire

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Connection:
    """A channel, the socket at its other end, and the reasons it was broken."""

    def __init__(self) -> None:
        server_end, self.peer = socket.socketpair()
        self.broken: list[str] = []
        self.channel = Channel(server_end, self.broken.append)
        self.channel.open()

    def send(self, header: dict, descriptors: tuple[int, ...] = ()) -> None:
        socket.send_fds(self.peer, [wire.encode(header)], list(descriptors))

    async def set_up(self) -> Connection:
        self.send({"hello": True})
        await self.channel.wait_hello()
        self.send({"ready": True})
        await self.channel.wait_ready()
        return self

    async def send_call(self) -> Call:
        call = Call({"code": "1"}, timeout=5, output_bytes=1000)
        assert await self.channel.send_call(call)
        return call

    async def until_broken(self) -> str:
        async with asyncio.timeout(5):
            while not self.broken:  # noqa: ASYNC110 - a callback, not an event
                await asyncio.sleep(0.01)
        return self.broken[0]


@pytest.fixture
async def connection():
    made = Connection()
    yield made
    made.peer.close()
    made.channel.close()
    made.channel.close()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def reply_header(call: Call, other: dict | None = None) -> dict:
    return {"call": call.token, "status": "success", "exit_code": 0, "parts": [], **(other or {})}


async def test_descriptors_come_with_the_setup_messages(connection):
    connection.send({"hello": True}, (0,))
    (first,) = await connection.channel.wait_hello()
    connection.send({"ready": True}, (0, 1))
    rest = await connection.channel.wait_ready()
    assert len({first, *rest}) == 3
    for descriptor in (first, *rest):
        os.close(descriptor)


async def test_descriptors_without_a_waiter_are_closed(connection):
    before = open_descriptors()
    connection.send({"hello": True}, (0, 1))
    await asyncio.sleep(0.05)
    assert open_descriptors() == before + 2
    connection.channel.close()
    assert open_descriptors() == before - 1


async def test_a_setup_failure_is_raised_to_the_waiter(connection):
    connection.send({"failed": "no mounts"})
    with pytest.raises(CannotStart, match="no mounts"):
        await connection.channel.wait_hello()
    connection.channel.fail_setup("it died")
    with pytest.raises(CannotStart, match="it died"):
        await connection.channel.wait_ready()


async def test_the_reply_is_set_on_the_call(connection):
    await connection.set_up()
    call = await connection.send_call()
    connection.send(reply_header(call))
    assert await call.reply == ExecReply(status="success", exit_code=0)
    assert connection.broken == []


async def test_after_peer_closed_the_reply_is_none(connection):
    await connection.set_up()
    call = await connection.send_call()
    connection.channel.peer_closed()
    assert await call.reply is None


@pytest.mark.parametrize("invalid", [{"call": "another"}, {"status": "ended"}, {"exit_code": -1}], ids=str)
async def test_after_an_invalid_reply_a_valid_one_is_ignored(connection, invalid):
    await connection.set_up()
    call = await connection.send_call()
    connection.peer.sendall(wire.encode(reply_header(call, invalid)) + wire.encode(reply_header(call)))
    assert await connection.until_broken() == "the code sent an unexpected reply"
    connection.send(reply_header(call))
    await asyncio.sleep(0.05)
    assert not call.reply.done()


async def test_after_stop_reading_replies_are_ignored(connection):
    await connection.set_up()
    call = await connection.send_call()
    connection.channel.stop_reading()
    connection.send(reply_header(call))
    await asyncio.sleep(0.05)
    assert not call.reply.done()


async def test_a_reply_between_calls_breaks_the_channel(connection):
    await connection.set_up()
    call = await connection.send_call()
    connection.send(reply_header(call))
    await call.reply
    connection.channel.clear_call()
    connection.send(reply_header(call))
    assert "unexpected reply" in await connection.until_broken()


async def test_descriptors_sent_by_the_code_are_dropped(connection):
    await connection.set_up()
    call = await connection.send_call()
    before = open_descriptors()
    connection.send(reply_header(call), (0, 1))
    await call.reply
    assert open_descriptors() == before


async def test_an_invalid_frame_breaks_the_channel(connection):
    await connection.set_up()
    await connection.send_call()
    connection.peer.sendall(b"\xff" * 8)
    assert "too large" in await connection.until_broken()


async def test_closing_the_socket_breaks_the_channel(connection):
    await connection.set_up()
    connection.peer.close()
    assert await connection.until_broken() == "the code closed its control channel"


async def test_sending_a_call_that_is_never_read_times_out(connection):
    await connection.set_up()
    call = Call({"code": "#" * (4 << 20)}, timeout=0.2, output_bytes=1000)
    assert not await connection.channel.send_call(call)


async def test_a_long_call_is_sent_completely(connection):
    await connection.set_up()
    call = Call({"code": "#" * (4 << 20)}, timeout=20, output_bytes=1000)
    decoder = wire.Decoder()

    def read() -> int:
        while not (frames := decoder.feed(connection.peer.recv(1 << 16))):
            pass
        return len(frames[0][0]["code"])

    reading = asyncio.create_task(asyncio.to_thread(read))
    assert await connection.channel.send_call(call)
    assert await reading == 4 << 20


async def test_cancelling_wait_hello_leaks_no_descriptor(connection):
    before = open_descriptors()
    waiting = asyncio.create_task(connection.channel.wait_hello())
    await asyncio.sleep(0)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    connection.send({"hello": True}, (0,))
    await asyncio.sleep(0.05)
    connection.channel.close()
    assert open_descriptors() == before - 1
