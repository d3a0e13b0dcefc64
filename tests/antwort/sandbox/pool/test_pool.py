"""The pool survives what happens to its zygotes, and works, weaker, where walls are missing."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from waiting import wait_until_async

from antwort.sandbox import ContainerLimits, Pool, probe
from antwort.sandbox.errors import AtCapacity, CannotStart
from antwort.sandbox.pool import pool as pools

NOT_LINUX = """
import os, pathlib, resource, sys
del os.pidfd_open
for name in ("SIGPENDING", "MSGQUEUE", "RTPRIO", "NICE"):
    delattr(resource, "RLIMIT_" + name)

class Path(type(pathlib.Path())):
    def __new__(cls, *parts):
        return super().__new__(cls, *("/nowhere" if str(part).startswith("/proc/") else part for part in parts))

    def __init__(self, *parts):
        super().__init__(*("/nowhere" if str(part).startswith("/proc/") else part for part in parts))

pathlib.Path = Path
code, sys.argv = sys.argv[4], ["-c", *sys.argv[5:]]
exec(code)
"""
"""A Python as on a system without /proc, without descriptors of processes and with fewer limits."""

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


def children() -> set[int]:
    """The processes that this one has started; as root or not, a zygote's first is one of them."""
    return {int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


async def test_a_dead_zygote_is_replaced_and_its_containers_say_so():
    async with Pool(probe(), modules=()) as pool:
        container = await pool.create()
        (nest,) = pool._nests.values()
        assert nest.zygote is not None
        os.kill(nest.zygote.pid, signal.SIGKILL)
        await pool.create()  # at once, while it dies: this one may die with it, but there is one
        await asyncio.sleep(0.5)
        another = await pool.create()
        assert (await another.execute("1 + 1", timeout=5)).echo == "2"
        assert not container.alive


async def test_a_worn_zygote_is_recycled_and_its_containers_live_on(monkeypatch):
    monkeypatch.setattr(pools, "FORKS_PER_ZYGOTE", 2)
    async with Pool(probe(), modules=(), spares=False) as pool:
        old = await pool.create()
        await pool.create()
        new = await pool.create()
        hashes = [(await container.execute("hash('x')", timeout=5)).echo for container in (old, new)]
        assert hashes[0] != hashes[1]
        assert old.alive


async def test_the_recycled_zygote_goes_with_the_last_of_its_containers(monkeypatch):
    monkeypatch.setattr(pools, "FORKS_PER_ZYGOTE", 2)
    monkeypatch.setattr(pools, "_SWEEP_SECONDS", 0.05)
    async with Pool(probe(), modules=(), spares=False) as pool:
        first, second = await pool.create(), await pool.create()
        (worn,) = (nest.zygote for nest in pool._nests.values())
        assert worn is not None
        third = await pool.create()
        assert pool._retired == [worn]
        await first.end("over")
        await asyncio.sleep(0.5)  # time enough to be swept, if it were
        assert (await second.execute("1 + 1", timeout=5)).echo == "2"
        assert worn.pid in children()
        await second.end("over")
        await wait_until_async(lambda: worn.pid not in children())
        assert (pool._retired, (await third.execute("1 + 1", timeout=5)).echo) == ([], "2")


async def test_only_so_many_tenants_have_a_zygote_and_idle_ones_make_room(monkeypatch):
    monkeypatch.setattr(pools, "MOST_TENANTS", 2)
    async with Pool(probe(), modules=(), spares=False) as pool:
        first = await pool.create(tenant="a")
        await pool.create(tenant="b")
        with pytest.raises(AtCapacity):
            await pool.create(tenant="c")
        await first.end("over")
        monkeypatch.setattr(pools, "_SURELY_UNUSED_SECONDS", 0.0)
        third = await pool.create(tenant="c")
        assert (await third.execute("1 + 1", timeout=5)).echo == "2"


@pytest.mark.parametrize("replaced", [False, True], ids=["put back", "ended, since there is another"])
async def test_who_gives_up_while_the_reserve_starts_leaves_no_process_behind(replaced):
    before = children()
    async with Pool(probe(), modules=()) as pool:
        creating = asyncio.create_task(pool.create())
        await asyncio.sleep(0.02)
        assert not creating.done()
        if replaced:
            pool._keep_reserve()
        creating.cancel()
        await asyncio.gather(creating, return_exceptions=True)
        assert creating.cancelled()
    assert children() == before


async def test_who_gives_up_while_room_is_made_leaves_no_process_behind(monkeypatch):
    monkeypatch.setattr(pools, "MOST_TENANTS", 1)
    monkeypatch.setattr(pools, "_SURELY_UNUSED_SECONDS", 0.0)
    before = children()
    async with Pool(probe(), modules=()) as pool:
        await (await pool.create(tenant="a")).end("over")
        creating = asyncio.create_task(pool.create(tenant="b"))
        await asyncio.sleep(0)
        assert not pool._nests  # that of the first tenant is about to go
        creating.cancel()
        await asyncio.gather(creating, return_exceptions=True)
        assert creating.cancelled()
    assert children() == before


async def test_a_stack_that_is_not_installed_says_what_to_do():
    with pytest.raises(CannotStart, match=r"\[sandbox\] extra"):
        Pool(probe(), modules=("surely_not_installed",))


@pytest.mark.parametrize("walls", [{"landlock", "seccomp"}, set()], ids=["landlock and seccomp", "nothing"])
async def test_without_namespaces_the_same_api_works(walls):
    host = replace(probe(), walls=frozenset(walls), groups=None)
    async with Pool(host, modules=(), spares=False) as pool:
        container = await pool.create(ContainerLimits(memory_bytes=256 << 20))
        outcome = await container.execute("open('f', 'w').write('x'); import os; os.listdir()", timeout=5)
        assert outcome.echo == "['f']", outcome
        assert container.files.read("f", 10) == b"x"
        tried = await container.execute(
            "open('/var/tmp/antwort-weak', 'w').close(); os.unlink('/var/tmp/antwort-weak')", timeout=5
        )
        assert (tried.error is not None) == ("landlock" in walls)
        place = Path((await container.execute("print(os.getcwd())", timeout=5)).stdout.strip())
        told = await pool.create(output="out")
        seen = await told.execute("import os; os.environ['OUTPUT_DIR'] == os.path.join(os.getcwd(), 'out')", timeout=5)
        assert seen.echo == "True"
        slept = await container.execute("import time; time.sleep(0.5); 'well'", timeout=5)  # the watchdog looks at it
        assert slept.echo == "'well'", slept
        await container.end("over")
    assert not place.parent.exists()


async def test_on_a_system_unlike_linux_code_runs_is_interrupted_and_ends(monkeypatch, tmp_path):
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\n{NOT_LINUX}")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    before = children()
    async with Pool(replace(probe(), walls=frozenset(), groups=None), modules=(), spares=False) as pool:
        container = await pool.create()
        seen = await container.execute("import os; hasattr(os, 'pidfd_open'), os.getpid()", timeout=5)
        assert seen.echo == f"(False, {container.pids()[0]})", seen
        seen = await container.execute("import time; kept = 1; time.sleep(60)", timeout=0.3)
        assert (seen.status, container.alive) == ("timeout", True), seen
        assert (await container.execute("kept", timeout=5)).echo == "1"
        running = asyncio.create_task(container.execute("while True: pass", timeout=60))
        await wait_until_async(lambda: container.busy)
        await asyncio.sleep(0.2)
        assert container.interrupt()
        assert (await running).status == "interrupted"
        stubborn = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
        seen = await container.execute(stubborn, timeout=0.3)
        assert (seen.status, container.alive, container.pids()) == ("timeout", False, [])
    assert children() == before
