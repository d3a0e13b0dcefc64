"""Who is counted, and where nobody else counts, who is ended."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from textwrap import dedent

import pytest

from antwort.sandbox import ContainerLimits, Pool, probe
from antwort.sandbox.pool import watchdog

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def pool():
    async with Pool(replace(probe(), groups=None), modules=(), spares=False) as pool:
        yield pool


async def end_of(container) -> str | None:
    for _ in range(100):
        if not container.alive:
            break
        await asyncio.sleep(0.05)
    await container.end("the test is over")
    return container.reason


async def test_idle_containers_are_watched_too(pool):
    """A process left behind takes its memory when nobody runs anything."""
    container = await pool.create(ContainerLimits(memory_bytes=100 << 20))
    later = """
        import os, time
        if os.fork() == 0:
            time.sleep(0.5); x = bytearray(b'x') * (150 << 20); time.sleep(60)
    """
    assert (await container.execute(dedent(later), timeout=5)).status == "success"
    assert await end_of(container) == "oom"


async def test_memory_is_summed_over_processes_and_files(pool):
    container = await pool.create(ContainerLimits(memory_bytes=100 << 20, disk_bytes=50 << 20))
    share = """
        import os, time
        x = bytearray(b'x') * (30 << 20)
        if os.fork() == 0:
            y = bytearray(b'y') * (30 << 20)
            time.sleep(60)
    """
    assert (await container.execute(dedent(share), timeout=5)).status == "success"
    await asyncio.sleep(1.2)
    assert container.alive
    await asyncio.to_thread(container.files.write, "f", b"x" * (45 << 20))
    assert await end_of(container) == "oom"


async def test_shared_pages_are_not_counted_for_each_of_those_that_share_them(pool):
    container = await pool.create(ContainerLimits(memory_bytes=150 << 20))
    code = """
        import os, time
        x = bytearray(b'x') * (60 << 20)
        for _ in range(4):
            if os.fork() == 0: time.sleep(60)
        time.sleep(1)
    """
    assert (await container.execute(dedent(code), timeout=10)).status == "success"
    assert await end_of(container) == "the test is over"


async def test_sockets_are_counted_wherever_they_hide(pool):
    """Sent over a socket and closed, a descriptor shows nowhere; the kernel still has it."""
    container = await pool.create()
    code = """
        import array, socket, time
        kept = [socket.socket() for _ in range(600)]
        time.sleep(0.5)
    """
    assert (await container.execute(dedent(code), timeout=10)).status == "success"
    hidden = """
        a, b = socket.socketpair()
        for _ in range(10):
            many = [socket.socket() for _ in range(60)]
            a.sendmsg([b'x'], [(1, 1, array.array('i', [s.fileno() for s in many]))])
            for s in many: s.close()
        time.sleep(5)
    """
    await container.execute(dedent(hidden), timeout=10)
    assert await end_of(container) == f"it had more than {watchdog.MOST_SOCKETS} sockets open"
