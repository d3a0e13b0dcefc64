"""Container: calls, interrupts, ends, and cleanup after cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from antwort.sandbox import ContainerLimits, Pool, probe
from antwort.sandbox.errors import Ended

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(params=["cgroup", "watchdog"])
async def pool(request):
    host = probe()
    if request.param == "watchdog":
        host = replace(host, cgroups=None)
    elif host.cgroups is None:
        pytest.skip("this host has no cgroups")
    async with Pool(host, modules=(), prefork=False) as pool:
        await (await pool.create()).end("the zygote has started")
        yield pool


def resources() -> tuple[int, int]:
    """Open descriptors and cgroups of this process."""
    cgroups = [*Path("/sys/fs/cgroup").glob(f"*/antwort-{os.getpid()}-*")]
    return len(list(Path("/proc/self/fd").iterdir())), len(cgroups)


async def is_released(before: tuple[int, int]) -> bool:
    deadline = time.monotonic() + 5
    while resources() != before and time.monotonic() < deadline:  # noqa: ASYNC110 - the kernel sends no event
        await asyncio.sleep(0.02)
    return resources() == before


async def test_variables_persist_and_the_last_expression_is_the_result(pool):
    container = await pool.create()
    await container.execute("x = 20", timeout=5)
    reply = await container.execute("print('out')\nx + 1", timeout=5)
    assert (reply.status, reply.stdout, reply.result) == ("success", "out\n", "21")


async def test_calls_run_one_after_the_other(pool):
    container = await pool.create()
    first, second = await asyncio.gather(
        container.execute("import time; time.sleep(0.2); x = 'first'", timeout=5), container.execute("x", timeout=5)
    )
    assert (first.status, second.result) == ("success", "'first'")


async def test_an_interrupt_keeps_the_state(pool):
    container = await pool.create()
    assert not container.interrupt()
    running = asyncio.create_task(container.execute("x = 1\nimport time; time.sleep(30)", timeout=40))
    await asyncio.sleep(0.2)
    assert container.interrupt()
    assert (await running).status == "interrupted"
    assert (await container.execute("x", timeout=5)).result == "1"


async def test_after_the_end_calls_raise_with_the_reason(pool):
    container = await pool.create()
    reply = await container.execute("import os; os._exit(3)", timeout=5)
    assert (reply.status, reply.reason) == ("ended", "the interpreter exited with code 3")
    with pytest.raises(Ended, match="exited with code 3"):
        await container.execute("1", timeout=5)
    await container.end("test")
    with pytest.raises(Ended, match="exited with code 3"):
        assert container.files


@pytest.mark.parametrize("delay", [0, 0.001, 0.003, 0.006, 0.01, 0.02])
async def test_cancelled_creation_leaks_nothing(pool, delay):
    before = resources()
    creating = asyncio.create_task(pool.create())
    await asyncio.sleep(delay)
    creating.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await (await creating).end("created before the cancellation")
    assert await is_released(before)
    assert pool.containers == 0


async def test_cancelling_end_still_ends_the_container(pool):
    before = resources()
    container = await pool.create()
    ending = asyncio.create_task(container.end("test"))
    await asyncio.sleep(0)
    ending.cancel()
    await asyncio.gather(ending, return_exceptions=True)
    assert await is_released(before)


async def test_a_call_cancelled_repeatedly_is_still_stopped(pool):
    container = await pool.create()
    running = asyncio.create_task(container.execute("print('old')\nimport time; time.sleep(30)", timeout=40))
    await asyncio.sleep(0.2)
    for _ in range(3):
        running.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await running
    reply = await container.execute("'mine'", timeout=5)
    assert (reply.result, reply.stdout, reply.stderr) == ("'mine'", "", "")


async def test_memory_over_the_limit_ends_it_with_oom(pool):
    container = await pool.create(ContainerLimits(memory_bytes=128 << 20))
    hungry = "import time\nx = []\nwhile True:\n    x.append(bytearray(b'x') * (2 << 20)); time.sleep(0.005)"
    reply = await container.execute(hungry, timeout=30)
    assert (reply.status, reply.reason) == ("ended", "oom")
    await container.end("test")


async def test_output_before_the_exit_is_kept(pool):
    container = await pool.create()
    reply = await container.execute("import os\nos.write(1, b'x' * 60_000)\nos._exit(0)", timeout=5)
    assert reply.stdout == "x" * 60_000
    await container.end("test")


@pytest.mark.parametrize(
    "statement, reason",
    [
        ("os._exit(137)", "the interpreter exited with code 137"),
        ("os.kill(os.getpid(), 9)", "the interpreter was killed by SIGKILL"),
        ("os._exit(1)", "the interpreter exited with code 1"),
        ("os.kill(os.getpid(), 1)", "the interpreter was killed by SIGHUP"),
    ],
)
async def test_a_kill_is_distinguished_from_an_exit_with_the_same_code(pool, statement, reason):
    container = await pool.create()
    reply = await container.execute(f"import os; {statement}", timeout=5)
    assert (reply.status, reply.reason) == ("ended", reason)
    assert reply.exit_code > 0, "negative codes are reserved for calls that did not run to an end"
    await container.end("test")


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT])
async def test_signals_that_the_server_ignores_are_not_ignored_in_the_container(number):
    before = signal.signal(number, signal.SIG_IGN)  # as under nohup
    try:
        async with Pool(probe(), modules=(), prefork=False) as pool:
            container = await pool.create()
            reply = await container.execute(f"import os; os.kill(os.getpid(), {int(number)})", timeout=5)
    finally:
        signal.signal(number, before)
    assert reply.reason == f"the interpreter was killed by {number.name}"
