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
from antwort.sandbox.host.process import descendants

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


async def test_a_command_has_its_own_process_directory_and_environment(pool):
    container = await pool.create()
    await container.execute("import os; os.chdir('/'); os.environ['X'] = '1'; os.environ.pop('PATH')", timeout=5)
    reply = await container.run_command('pwd; echo "$X"; command -v env; exit 5', timeout=5)
    assert (reply.status, reply.exit_code, reply.stdout) == ("exit", 5, "/mnt/data\n\n/usr/bin/env\n")
    assert (await container.execute("os.getcwd()", timeout=5)).result == "'/'"


async def test_streams_of_a_command_can_be_opened_by_their_paths(pool):
    container = await pool.create()
    reply = await container.run_command("echo a > /dev/stdout; echo b | tee /dev/stderr > /dev/null", timeout=5)
    assert (reply.stdout, reply.stderr) == ("a\n", "b\n")


async def test_output_of_a_command_is_streamed(pool):
    container, seen = await pool.create(), []
    await container.run_command("echo a; echo b >&2", timeout=5, on_output=lambda *piece: seen.append(piece))
    assert sorted(seen) == [("stderr", "b\n"), ("stdout", "a\n")]


async def test_a_command_that_is_killed_by_a_signal_has_the_exit_code_of_a_shell(pool):
    container = await pool.create()
    await container.execute("import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)", timeout=5)
    assert (await container.run_command("kill -9 $$", timeout=5)).exit_code == 137
    assert (await container.run_command("exit 7", timeout=5)).exit_code == 7


async def test_a_command_past_its_timeout_is_killed_and_variables_stay(pool):
    container = await pool.create()
    await container.execute("x = 1", timeout=5)
    reply = await container.run_command("echo a; setsid sleep 60 & sleep 60", timeout=0.3)
    assert (reply.status, reply.stdout) == ("timeout", "a\n")
    assert len(descendants(container.pids()[0])) == 2  # init and the interpreter
    assert (await container.execute("x", timeout=5)).result == "1"


async def test_a_background_process_of_a_command_goes_on(pool):
    container = await pool.create()
    reply = await container.run_command("(while [ ! -e go ]; do sleep 0.01; done; touch done) & echo begun", timeout=5)
    assert (reply.status, reply.stdout) == ("exit", "begun\n")
    reply = await container.run_command("touch go; while [ ! -e done ]; do sleep 0.01; done; echo done", timeout=5)
    assert reply.stdout == "done\n"


async def test_a_cancelled_command_is_killed_with_what_it_started(pool):
    container = await pool.create()
    begun = asyncio.Event()
    running = asyncio.create_task(
        container.run_command("echo a; setsid sleep 60 & sleep 60", timeout=60, on_output=lambda *_: begun.set())
    )
    await begun.wait()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert len(descendants(container.pids()[0])) == 2
    assert (await container.run_command("echo b", timeout=5)).stdout == "b\n"


async def test_a_command_is_interrupted(pool):
    container = await pool.create()
    begun = asyncio.Event()
    running = asyncio.create_task(
        container.run_command("echo a; sleep 60", timeout=60, on_output=lambda *_: begun.set())
    )
    await begun.wait()
    assert container.interrupt()
    assert (await running).status == "interrupted"


async def test_commands_leave_no_descriptors(pool):
    container = await pool.create()
    await container.run_command("true", timeout=5)
    before = resources()
    for _ in range(5):
        await container.run_command("echo x", timeout=5)
    assert resources() == before
    assert (await container.execute("import os; len(os.listdir('/proc/self/fd'))", timeout=5)).result == "5"
