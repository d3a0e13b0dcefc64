"""One container: calls, interrupts, ends, and what is left when somebody stops waiting."""

from __future__ import annotations

import asyncio
import contextlib
import os
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


@pytest.fixture(params=["counted", "watched"])
async def pool(request):
    host = probe()
    if request.param == "watched":
        host = replace(host, groups=None)
    elif host.groups is None:
        pytest.skip("no control groups to be had here")
    async with Pool(host, modules=(), spares=False) as pool:
        await (await pool.create()).end("the zygote is there now")
        yield pool


def held() -> tuple[int, int]:
    """Descriptors of ours, and control groups."""
    groups = [*Path("/sys/fs/cgroup").glob(f"*/antwort-{os.getpid()}-*")]
    return len(list(Path("/proc/self/fd").iterdir())), len(groups)


async def let_go(before: tuple[int, int]) -> bool:
    deadline = time.monotonic() + 5
    while held() != before and time.monotonic() < deadline:  # noqa: ASYNC110 - the kernel sends no event
        await asyncio.sleep(0.02)
    return held() == before


async def test_variables_live_on_and_the_last_expression_is_echoed(pool):
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


async def test_after_its_end_it_says_why(pool):
    container = await pool.create()
    reply = await container.execute("import os; os._exit(3)", timeout=5)
    assert (reply.status, reply.reason) == ("ended", "the interpreter exited with code 3")
    with pytest.raises(Ended, match="exited with code 3"):
        await container.execute("1", timeout=5)
    await container.end("over")
    with pytest.raises(Ended, match="exited with code 3"):
        assert container.files


@pytest.mark.parametrize("delay", [0, 0.001, 0.003, 0.006, 0.01, 0.02])
async def test_creation_that_is_given_up_leaves_nothing(pool, delay):
    before = held()
    making = asyncio.create_task(pool.create())
    await asyncio.sleep(delay)
    making.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await (await making).end("it was quicker")
    assert await let_go(before)
    assert pool.containers == 0


async def test_an_end_that_is_given_up_ends_all_the_same(pool):
    before = held()
    container = await pool.create()
    ending = asyncio.create_task(container.end("over"))
    await asyncio.sleep(0)
    ending.cancel()
    await asyncio.gather(ending, return_exceptions=True)
    assert await let_go(before)


async def test_a_call_whose_caller_gives_up_twice_is_still_stopped(pool):
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
    await container.end("over")


async def test_what_was_printed_before_the_end_is_kept(pool):
    container = await pool.create()
    reply = await container.execute("import os\nos.write(1, b'x' * 60_000)\nos._exit(0)", timeout=5)
    assert reply.stdout == "x" * 60_000
    await container.end("over")


@pytest.mark.parametrize(
    "leave, reason",
    [
        ("os._exit(137)", "the interpreter exited with code 137"),
        ("os.kill(os.getpid(), 9)", "the interpreter was ended by SIGKILL"),
        ("os._exit(1)", "the interpreter exited with code 1"),
        ("os.kill(os.getpid(), 1)", "the interpreter was ended by SIGHUP"),
    ],
)
async def test_a_kill_is_told_from_an_exit_that_looks_like_one(pool, leave, reason):
    container = await pool.create()
    reply = await container.execute(f"import os; {leave}", timeout=5)
    assert (reply.status, reply.reason) == ("ended", reason)
    assert reply.exit_code > 0, "below zero is for runs that never came to an end of their own"
    await container.end("over")
