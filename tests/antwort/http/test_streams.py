from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from antwort.http.streams import ByteStream, EventStream

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def wait_forever() -> Any:
    await asyncio.Event().wait()


async def disconnect():
    return {"type": "http.disconnect"}


def stream(frames, **options):
    return EventStream(frames, encode=bytes, **{"keep_alive": 60, "stall_timeout": 60, **options})


async def test_a_frame_is_produced_only_after_the_previous_one_was_sent():
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
    await stream(frames(), on_close=lambda: closed.append(1))({}, wait_forever, send)
    assert (sent, closed) == ([b"0", b"1", b"2"], [1])


async def test_the_stream_is_closed_before_the_end_of_the_body():
    """A client that sends its next request at once finds its slots released."""
    ended, closed = [], []

    async def frames():
        try:
            yield b"x"
        finally:
            ended.append(1)

    async def send(message):
        if message["type"] == "http.response.body":
            assert (ended, closed) == (([], []) if message["more_body"] else ([1], [1]))

    await stream(frames(), on_close=lambda: closed.append(1))({}, wait_forever, send)
    assert closed == [1]


async def test_a_client_that_reads_nothing_closes_the_generator():
    ended = []

    async def frames():
        try:
            while True:
                yield b"x"
        finally:
            ended.append(1)

    async def send(message):
        if message.get("body"):
            await wait_forever()

    with pytest.raises(ClientDisconnect):
        await stream(frames(), stall_timeout=0.05)({}, wait_forever, send)
    assert ended == [1]


async def test_an_exception_becomes_an_error_event_without_its_text():
    sent = []

    async def frames():
        yield b"x"
        raise ValueError("a secret")

    async def send(message):
        sent.append(message.get("body", b""))

    await stream(frames())({}, wait_forever, send)
    assert sent[2].startswith(b"event: error\ndata: ")
    assert b"secret" not in sent[2]


async def test_keep_alive_comments_are_sent_only_while_idle():
    sent = []

    async def frames():
        for _ in range(10):
            await asyncio.sleep(0.01)
            yield b"busy"
        await asyncio.sleep(0.3)

    async def send(message):
        sent.append(message.get("body", b""))

    await stream(frames(), keep_alive=0.1)({}, wait_forever, send)
    assert b": keep-alive\n\n" not in sent[:9]
    assert sent.count(b": keep-alive\n\n") >= 1


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Chunks:
    """Chunks of a download that records whether it was closed."""

    def __init__(self, *chunks: bytes | Exception) -> None:
        self.left = list(chunks)
        self.closed = False

    def __aiter__(self):
        return self

    async def __anext__(self) -> bytes:
        if not self.left:
            raise StopAsyncIteration
        chunk = self.left.pop(0)
        if isinstance(chunk, Exception):
            raise chunk
        return chunk

    async def aclose(self) -> None:
        self.closed = True


def download(chunks, stall_timeout=60.0):
    return ByteStream(chunks, name="n%C3%A4me", media_type="application/octet-stream", stall_timeout=stall_timeout)


async def test_a_download_is_sent_and_its_source_closed():
    sent: list[Any] = []

    async def send(message):
        sent.append(message)

    chunks = Chunks(b"a", b"b")
    await download(chunks)({}, wait_forever, send)

    headers = dict(sent[0]["headers"])
    assert headers[b"content-disposition"] == b"attachment; filename*=UTF-8''n%C3%A4me"
    assert b"content-length" not in headers
    assert [message["body"] for message in sent[1:]] == [b"a", b"b", b""]
    assert [message["more_body"] for message in sent[1:]] == [True, True, False]
    assert chunks.closed


async def test_a_download_that_fails_has_no_end():
    sent: list[Any] = []

    async def send(message):
        sent.append(message)

    chunks = Chunks(b"a", ValueError("disk error"))
    with pytest.raises(ValueError, match="disk error"):
        await download(chunks)({}, wait_forever, send)
    assert sent[-1]["more_body"]
    assert chunks.closed


@pytest.mark.parametrize("receive", [disconnect, wait_forever])
async def test_the_source_is_closed_when_the_client_disconnects_or_stalls(receive):
    async def send(message):
        await wait_forever()

    chunks = Chunks(b"a")
    with pytest.raises(ClientDisconnect):
        await download(chunks, stall_timeout=0.05)({}, receive, send)
    assert chunks.closed


# ── held frames ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def held_stream(frames, **options):
    """What a stream sends that holds the frames `a`."""
    sent = []

    async def send(message):
        sent.append(message.get("body", message["type"]))

    await stream(frames, is_held=lambda frame: frame == b"a", **options)({}, wait_forever, send)
    return sent


async def test_held_frames_are_sent_with_the_next_one():
    async def frames():
        for frame in (b"a", b"", b"a", b"b", b"a"):
            yield frame

    assert await held_stream(frames()) == ["http.response.start", b"aa", b"b", b"a", b""]


async def test_an_error_before_the_first_frame_is_no_part_of_the_stream():
    async def frames():
        yield b"a"
        raise ValueError("refused")

    closed = []
    with pytest.raises(ValueError, match="refused"):
        await held_stream(frames(), on_close=lambda: closed.append(1))
    assert closed == [1]


async def test_a_keep_alive_sends_the_held_frames_before_it():
    is_silent = asyncio.Event()

    async def frames():
        yield b"a"
        await is_silent.wait()
        yield b"b"

    sent = []

    async def send(message):
        sent.append(message.get("body", message["type"]))
        if message.get("body") == b"ping":
            is_silent.set()

    options = {"is_held": lambda frame: frame == b"a", "keep_alive": 0.01, "keep_alive_frame": b"ping"}
    await stream(frames(), **options)({}, wait_forever, send)
    assert [body for body in sent if body != b"ping"] == ["http.response.start", b"a", b"b", b""]
    assert sent.index(b"a") < sent.index(b"ping") < sent.index(b"b")


async def test_a_stream_of_held_frames_only_is_sent_at_its_end():
    async def frames():
        yield b"a"

    assert await held_stream(frames()) == ["http.response.start", b"a", b""]
