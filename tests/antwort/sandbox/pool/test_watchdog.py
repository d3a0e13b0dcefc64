"""Watchdog: memory and sockets of containers without cgroups."""

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
    async with Pool(replace(probe(), cgroups=None), modules=(), prefork=False) as pool:
        yield pool


async def end_of(container) -> str | None:
    for _ in range(100):
        if not container.alive:
            break
        await asyncio.sleep(0.05)
    await container.end("the test has ended")
    return container.reason


async def test_idle_containers_are_checked(pool):
    """A background process allocates memory while no call runs."""
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


async def test_shared_pages_are_counted_once(pool):
    container = await pool.create(ContainerLimits(memory_bytes=150 << 20))
    code = """
        import os, time
        x = bytearray(b'x') * (60 << 20)
        for _ in range(4):
            if os.fork() == 0: time.sleep(60)
        time.sleep(1)
    """
    assert (await container.execute(dedent(code), timeout=10)).status == "success"
    assert await end_of(container) == "the test has ended"


async def test_sockets_without_a_descriptor_are_counted(pool):
    """A socket sent over another and closed has no descriptor, but the kernel still holds it."""
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
    assert await end_of(container) == f"it had more than {watchdog.MAX_SOCKETS} sockets open"
