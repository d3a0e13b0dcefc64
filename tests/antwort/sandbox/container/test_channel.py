"""The channel: our own code introduces itself; after that only an answer to the question asked is one."""

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


class Line:
    """A channel, the socket at its other end, and why it was broken."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        self.broken: list[str] = []
        self.channel = Channel(ours, self.broken.append)
        self.channel.open()

    def say(self, header: dict, descriptors: tuple[int, ...] = ()) -> None:
        socket.send_fds(self.theirs, [wire.encode(header)], list(descriptors))

    async def introduced(self) -> Line:
        self.say({"hello": True})
        await self.channel.hello()
        self.say({"ready": True})
        await self.channel.ready()
        return self

    async def put(self, seconds: float = 5) -> Call:
        call = Call("1", timeout=seconds, output_bytes=1000)
        assert await self.channel.put(call)
        return call

    async def until_broken(self) -> str:
        async with asyncio.timeout(5):
            while not self.broken:  # noqa: ASYNC110 - a callback, not an event
                await asyncio.sleep(0.01)
        return self.broken[0]


@pytest.fixture
async def line():
    made = Line()
    yield made
    made.theirs.close()
    made.channel.close()
    made.channel.close()


def held() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def answer(call: Call, other: dict | None = None) -> dict:
    return {"call": call.token, "status": "success", "exit_code": 0, "parts": [], **(other or {})}


async def test_descriptors_come_with_the_introduction(line):
    line.say({"hello": True}, (0,))
    (first,) = await line.channel.hello()
    line.say({"ready": True}, (0, 1))
    rest = await line.channel.ready()
    assert len({first, *rest}) == 3
    for descriptor in (first, *rest):
        os.close(descriptor)


async def test_descriptors_that_nobody_takes_are_closed(line):
    before = held()
    line.say({"hello": True}, (0, 1))
    await asyncio.sleep(0.05)
    assert held() == before + 2
    line.channel.close()
    assert held() == before - 1


async def test_a_failure_to_settle_in_is_told_to_whoever_waits(line):
    line.say({"failed": "no mounts"})
    with pytest.raises(CannotStart, match="no mounts"):
        await line.channel.hello()
    line.channel.fail("it died")
    with pytest.raises(CannotStart, match="it died"):
        await line.channel.ready()


async def test_the_answer_to_the_question_is_the_calls(line):
    await line.introduced()
    call = await line.put()
    line.say(answer(call))
    assert await call.reply == ExecReply(status="success", exit_code=0)
    assert line.broken == []


async def test_who_hangs_up_gives_no_answer(line):
    await line.introduced()
    call = await line.put()
    line.channel.hang_up()
    assert await call.reply is None


@pytest.mark.parametrize("lie", [{"call": "another"}, {"status": "ended"}, {"exit_code": -1}], ids=str)
async def test_after_a_lie_the_truth_is_not_believed_either(line, lie):
    await line.introduced()
    call = await line.put()
    line.theirs.sendall(wire.encode(answer(call, lie)) + wire.encode(answer(call)))
    assert await line.until_broken() == "the code sent an answer that nobody had asked for"
    line.say(answer(call))
    await asyncio.sleep(0.05)
    assert not call.reply.done()


async def test_one_that_is_being_ended_is_not_believed_any_more(line):
    await line.introduced()
    call = await line.put()
    line.channel.distrust()
    line.say(answer(call))
    await asyncio.sleep(0.05)
    assert not call.reply.done()


async def test_between_two_calls_nothing_was_asked(line):
    await line.introduced()
    call = await line.put()
    line.say(answer(call))
    await call.reply
    line.channel.forget()
    line.say(answer(call))
    assert "nobody had asked" in await line.until_broken()


async def test_descriptors_that_the_code_sends_never_arrive(line):
    await line.introduced()
    call = await line.put()
    before = held()
    line.say(answer(call), (0, 1))
    await call.reply
    assert held() == before


async def test_what_is_no_frame_breaks_it(line):
    await line.introduced()
    await line.put()
    line.theirs.sendall(b"\xff" * 8)
    assert "too large" in await line.until_broken()


async def test_a_closed_end_breaks_it_unless_the_death_is_told_first(line):
    await line.introduced()
    line.theirs.close()
    assert await line.until_broken() == "the code closed its channel"


async def test_a_question_that_is_never_read_does_not_wait_for_ever(line):
    await line.introduced()
    call = Call("#" * (4 << 20), timeout=0.2, output_bytes=1000)
    assert not await line.channel.put(call)


async def test_a_long_question_arrives_whole(line):
    await line.introduced()
    call = Call("#" * (4 << 20), timeout=20, output_bytes=1000)
    decoder = wire.Decoder()

    def read() -> int:
        while not (frames := decoder.feed(line.theirs.recv(1 << 16))):
            pass
        return len(frames[0][0]["code"])

    reading = asyncio.create_task(asyncio.to_thread(read))
    assert await line.channel.put(call)
    assert await reading == 4 << 20


async def test_giving_up_while_it_introduces_itself_loses_no_descriptor(line):
    before = held()
    waiting = asyncio.create_task(line.channel.hello())
    await asyncio.sleep(0)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    line.say({"hello": True}, (0,))
    await asyncio.sleep(0.05)
    line.channel.close()
    assert held() == before - 1
