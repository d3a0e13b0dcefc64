"""Pipes: output during a call goes to the handler; output between calls is read and discarded."""

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
    pipes.start()
    yield pipes, output_end, errors_end
    pipes.close()
    pipes.close()
    os.close(output_end)
    os.close(errors_end)


async def until(condition) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.01)


async def test_output_is_passed_with_the_name_of_its_stream(ends):
    pipes, output, errors = ends
    received: list[tuple[str, bytes]] = []
    pipes.start_capture(lambda name, data: received.append((name, data)))
    os.write(output, b"out")
    os.write(errors, b"err")
    await until(lambda: len(received) == 2)
    assert sorted(received) == [("stderr", b"err"), ("stdout", b"out")]


async def test_drain_reads_what_is_in_the_pipe(ends):
    pipes, output, _ = ends
    received: list[bytes] = []
    pipes.start_capture(lambda _, data: received.append(data))
    os.write(output, b"x" * 60_000)
    pipes.drain()
    assert b"".join(received) == b"x" * 60_000


async def test_output_between_calls_is_discarded_and_never_fills_the_pipe(ends):
    pipes, output, _ = ends
    received: list[bytes] = []
    pipes.start_capture(lambda _, data: received.append(data))
    pipes.stop_capture()
    written = await asyncio.to_thread(lambda: sum(os.write(output, b"x" * 65_536) for _ in range(4)))
    assert written == 4 * 65_536
    pipes.start_capture(lambda _, data: received.append(data))
    os.write(output, b"mine")
    await until(lambda: received)
    assert received == [b"mine"]


async def test_a_flood_between_calls_is_read_slowly(ends):
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
    assert written < 10 * 65_536, "twenty iterations of the loop, and far fewer reads"


async def test_end_of_file_on_one_stream_keeps_the_other(ends):
    pipes, output, errors = ends
    received: list[bytes] = []
    pipes.start_capture(lambda _, data: received.append(data))
    os.dup2(os.open(os.devnull, os.O_WRONLY), output)  # the last writer of the pipe is gone
    await asyncio.sleep(0.05)
    os.write(errors, b"still here")
    await until(lambda: received)
    assert received == [b"still here"]
