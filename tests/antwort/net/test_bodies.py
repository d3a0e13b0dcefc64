"""Request bodies: size limit, announced length, draining, stall time-out and minimum rate."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import ClientDisconnect, Request

from antwort.net import bodies
from antwort.net.errors import BodyTimeout, SizeLimitExceeded

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Sender:
    """An ASGI `receive` that returns these chunks, each after `delay`; counts what was received."""

    def __init__(self, *chunks: bytes, delay: float = 0.0, disconnects: bool = False) -> None:
        self.left = list(chunks)
        self.delay = delay
        self.disconnects = disconnects
        self.received = 0

    async def __call__(self):
        await asyncio.sleep(self.delay)
        if not self.left:
            return {"type": "http.disconnect"}
        chunk = self.left.pop(0)
        self.received += len(chunk)
        return {"type": "http.request", "body": chunk, "more_body": bool(self.left) or self.disconnects}

    async def read(self, limit: int | None, *, length: int | None = None, **options) -> bytes:
        headers = [(b"content-length", b"%d" % length)] if length is not None else []
        request = Request({"type": "http", "headers": headers}, self)
        stream = bodies.stream_body(request, limit, **{"stall_timeout": 5.0, **options})
        return b"".join([chunk async for chunk in stream])


@pytest.mark.parametrize("limit", [10, 11, None])
async def test_a_body_up_to_the_limit_is_read(limit):
    assert await Sender(b"01234", b"", b"56789").read(limit, length=10) == b"0123456789"
    assert await Sender(b"").read(limit) == b""


async def test_a_body_above_the_limit_is_rejected_at_the_chunk_that_exceeds_it():
    sender = Sender(b"01234", b"56789", b"never read")
    with pytest.raises(SizeLimitExceeded, match="the archive exceeds the limit of 9 bytes") as caught:
        await sender.read(9, what="the archive")
    assert (caught.value.limit, sender.received) == (9, 10)


async def test_an_announced_length_above_the_limit_is_rejected_before_anything_is_read():
    sender = Sender(b"0123456789")
    for length in (10, 10**30):
        with pytest.raises(SizeLimitExceeded):
            await sender.read(9, length=length)
    assert sender.received == 0


async def test_the_excess_is_drained_so_that_the_client_sees_the_response():
    sender = Sender(*[b"x" * 10] * 10)
    with pytest.raises(SizeLimitExceeded):
        await sender.read(15, length=100, drain=1000)
    assert sender.received == 100


async def test_draining_is_limited():
    sender = Sender(*[b"x" * 10] * 10)
    with pytest.raises(SizeLimitExceeded):
        await sender.read(15, drain=30)
    assert sender.received == 50
    sender = Sender(*[b"x" * 10] * 10)
    with pytest.raises(SizeLimitExceeded):
        await sender.read(15, length=100, drain=30)
    assert sender.received == 0


async def test_a_stalled_body_times_out():
    with pytest.raises(BodyTimeout, match="the request body did not arrive in time"):
        await Sender(b"x", b"y", delay=10).read(10, stall_timeout=0.05)


async def test_a_body_below_the_minimum_rate_times_out_though_it_never_stalls():
    sender = Sender(*[b"x"] * 1000, delay=0.01)
    with pytest.raises(BodyTimeout):
        await sender.read(1000, stall_timeout=0.1)
    assert 2 < sender.received < 50


async def test_a_body_at_the_minimum_rate_has_no_total_time_limit():
    assert len(await Sender(*[b"x" * 1024] * 30, delay=0.01).read(None, stall_timeout=0.1)) == 30 * 1024


async def test_a_client_that_disconnects_is_no_complete_body():
    with pytest.raises(ClientDisconnect):
        await Sender(b"x", disconnects=True).read(10)
