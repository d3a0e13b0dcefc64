from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from antwort.http.streams import ByteStream, EventStream, attended

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def stay() -> Any:
    await asyncio.Event().wait()


async def go():
    return {"type": "http.disconnect"}


async def test_work_ends_and_its_value_comes_back():
    async def work():
        return 3

    assert await attended(stay, work()) == 3


async def test_a_caller_who_goes_ends_the_work():
    ended = asyncio.Event()

    async def work():
        try:
            await stay()
        finally:
            await asyncio.sleep(0.01)
            ended.set()

    with pytest.raises(ClientDisconnect):
        await attended(go, work())
    assert ended.is_set()


async def test_an_error_of_the_work_comes_through():
    async def work():
        raise ValueError("ours")

    with pytest.raises(ValueError, match="ours"):
        await attended(stay, work())


def stream(frames, **options):
    return EventStream(frames, encode=bytes, **{"keep_alive": 60, "stall_timeout": 60, **options})


async def test_frames_are_pulled_one_by_one():
    made, sent = [], []

    async def frames():
        for number in range(3):
            made.append(number)
            yield b"%d" % number

    async def send(message):
        if message.get("body"):
            sent.append(message["body"])
            assert len(made) == len(sent)

    closed = []
    await stream(frames(), closed=lambda: closed.append(1))({}, stay, send)
    assert (sent, closed) == ([b"0", b"1", b"2"], [1])


async def test_a_reader_who_takes_nothing_ends_the_frames():
    ended = []

    async def frames():
        try:
            while True:
                yield b"x"
        finally:
            ended.append(1)

    async def send(message):
        if message.get("body"):
            await stay()

    with pytest.raises(ClientDisconnect):
        await stream(frames(), stall_timeout=0.05)({}, stay, send)
    assert ended == [1]


async def test_what_goes_wrong_is_told_in_the_stream():
    sent = []

    async def frames():
        yield b"x"
        raise ValueError("a secret")

    async def send(message):
        sent.append(message.get("body", b""))

    await stream(frames())({}, stay, send)
    assert sent[2].startswith(b"event: error\ndata: ")
    assert b"secret" not in sent[2]


async def test_signs_of_life_come_only_while_there_is_nothing_else():
    sent = []

    async def frames():
        for _ in range(10):
            await asyncio.sleep(0.01)
            yield b"busy"
        await asyncio.sleep(0.3)

    async def send(message):
        sent.append(message.get("body", b""))

    await stream(frames(), keep_alive=0.1)({}, stay, send)
    assert b": keep-alive\n\n" not in sent[:9]
    assert sent.count(b": keep-alive\n\n") >= 1


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Pieces:
    """A file on its way, which knows whether it was closed."""

    def __init__(self, *pieces: bytes | Exception) -> None:
        self.left = list(pieces)
        self.closed = False

    def __aiter__(self):
        return self

    async def __anext__(self) -> bytes:
        if not self.left:
            raise StopAsyncIteration
        piece = self.left.pop(0)
        if isinstance(piece, Exception):
            raise piece
        return piece

    async def aclose(self) -> None:
        self.closed = True


def download(pieces, stall_timeout=60.0):
    return ByteStream(pieces, name="n%C3%A4me", media_type="application/octet-stream", stall_timeout=stall_timeout)


async def test_a_file_goes_out_whole_and_is_closed():
    sent: list[Any] = []

    async def send(message):
        sent.append(message)

    pieces = Pieces(b"a", b"b")
    await download(pieces)({}, stay, send)

    headers = dict(sent[0]["headers"])
    assert headers[b"content-disposition"] == b"attachment; filename*=UTF-8''n%C3%A4me"
    assert b"content-length" not in headers
    assert [message["body"] for message in sent[1:]] == [b"a", b"b", b""]
    assert [message["more_body"] for message in sent[1:]] == [True, True, False]
    assert pieces.closed


async def test_a_file_that_breaks_off_has_no_end():
    sent: list[Any] = []

    async def send(message):
        sent.append(message)

    pieces = Pieces(b"a", ValueError("broke off"))
    with pytest.raises(ValueError, match="broke off"):
        await download(pieces)({}, stay, send)
    assert sent[-1]["more_body"]
    assert pieces.closed


@pytest.mark.parametrize("receive", [go, stay])
async def test_a_file_that_nobody_takes_is_closed(receive):
    async def send(message):
        await stay()

    pieces = Pieces(b"a")
    with pytest.raises(ClientDisconnect):
        await download(pieces, stall_timeout=0.05)({}, receive, send)
    assert pieces.closed
