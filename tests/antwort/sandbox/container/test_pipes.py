"""What is printed during a call is handed on; what is printed between calls is read and belongs to nobody."""

from __future__ import annotations

import asyncio
import os

import pytest

from antwort.sandbox.container.pipes import Pipes

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def ends():
    output, output_end = os.pipe()
    errors, errors_end = os.pipe()
    pipes = Pipes(output, errors)
    pipes.open()
    yield pipes, output_end, errors_end
    pipes.close()
    pipes.close()
    os.close(output_end)
    os.close(errors_end)


async def until(condition) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - nobody sends an event for it
            await asyncio.sleep(0.01)


async def test_both_streams_come_under_their_names(ends):
    pipes, output, errors = ends
    heard: list[tuple[str, bytes]] = []
    pipes.listen(lambda name, data: heard.append((name, data)))
    os.write(output, b"out")
    os.write(errors, b"err")
    await until(lambda: len(heard) == 2)
    assert sorted(heard) == [("stderr", b"err"), ("stdout", b"out")]


async def test_what_is_there_already_can_be_had_at_once(ends):
    pipes, output, _ = ends
    heard: list[bytes] = []
    pipes.listen(lambda _, data: heard.append(data))
    os.write(output, b"x" * 60_000)
    pipes.drain()
    assert b"".join(heard) == b"x" * 60_000


async def test_what_comes_between_two_calls_is_thrown_away_and_never_fills_the_pipe(ends):
    pipes, output, _ = ends
    heard: list[bytes] = []
    pipes.listen(lambda _, data: heard.append(data))
    pipes.ignore()
    written = await asyncio.to_thread(lambda: sum(os.write(output, b"x" * 65_536) for _ in range(4)))
    assert written == 4 * 65_536
    pipes.listen(lambda _, data: heard.append(data))
    os.write(output, b"mine")
    await until(lambda: heard)
    assert heard == [b"mine"]


async def test_a_flood_that_nobody_listens_to_is_read_slowly(ends):
    _, output, _ = ends
    os.set_blocking(output, False)
    written = 0
    for _ in range(20):
        await asyncio.sleep(0)
        try:
            while True:
                written += os.write(output, b"x" * 65_536)
        except BlockingIOError:
            pass
    assert written < 10 * 65_536, "twenty turns of the loop, and by far not as many reads"


async def test_an_end_of_one_stream_leaves_the_other(ends):
    pipes, output, errors = ends
    heard: list[bytes] = []
    pipes.listen(lambda _, data: heard.append(data))
    os.dup2(os.open(os.devnull, os.O_WRONLY), output)  # the last writer of the pipe is gone
    await asyncio.sleep(0.05)
    os.write(errors, b"still here")
    await until(lambda: heard)
    assert heard == [b"still here"]
