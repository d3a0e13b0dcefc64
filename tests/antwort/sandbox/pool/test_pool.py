"""Pool: dead and retired zygotes, tenant limits, cancellation, hosts without namespaces."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
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
"""A Python as on a system without /proc, without pidfds and with fewer rlimits."""

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


def children() -> set[int]:
    """Child processes, which include each zygote's first process."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # the thread has ended meanwhile
            found.update(map(int, (task / "children").read_text().split()))
    return found


async def test_a_dead_zygote_is_replaced_and_its_containers_are_dead():
    async with Pool(probe(), modules=()) as pool:
        container = await pool.create()
        (tenant_pool,) = pool._tenant_pools.values()
        assert tenant_pool.zygote is not None
        os.kill(tenant_pool.zygote.pid, signal.SIGKILL)
        await pool.create()  # at once, while it dies: this container may die with it
        await asyncio.sleep(0.5)
        another = await pool.create()
        assert (await another.execute("1 + 1", timeout=5)).result == "2"
        assert not container.alive


async def test_a_zygote_over_its_fork_limit_is_replaced_and_its_containers_stay_alive(monkeypatch):
    monkeypatch.setattr(pools, "MAX_FORKS_PER_ZYGOTE", 2)
    async with Pool(probe(), modules=(), prefork=False) as pool:
        old = await pool.create()
        await pool.create()
        new = await pool.create()
        hashes = [(await container.execute("hash('x')", timeout=5)).result for container in (old, new)]
        assert hashes[0] != hashes[1]
        assert old.alive


async def test_a_retired_zygote_is_stopped_with_its_last_container(monkeypatch):
    monkeypatch.setattr(pools, "MAX_FORKS_PER_ZYGOTE", 2)
    monkeypatch.setattr(pools, "_SWEEP_SECONDS", 0.05)
    async with Pool(probe(), modules=(), prefork=False) as pool:
        first, second = await pool.create(), await pool.create()
        (retired,) = (p.zygote for p in pool._tenant_pools.values())
        assert retired is not None
        third = await pool.create()
        assert pool._retired == [retired]
        await first.end("test")
        await asyncio.sleep(0.5)  # longer than the sweep interval
        assert (await second.execute("1 + 1", timeout=5)).result == "2"
        assert retired.pid in children()
        await second.end("test")
        await wait_until_async(lambda: retired.pid not in children())
        assert (pool._retired, (await third.execute("1 + 1", timeout=5)).result) == ([], "2")


async def test_the_number_of_tenants_is_limited_and_idle_ones_are_evicted(monkeypatch):
    monkeypatch.setattr(pools, "MAX_TENANTS", 2)
    async with Pool(probe(), modules=(), prefork=False) as pool:
        first = await pool.create(tenant="a")
        await pool.create(tenant="b")
        with pytest.raises(AtCapacity):
            await pool.create(tenant="c")
        await first.end("test")
        monkeypatch.setattr(pools, "_MIN_IDLE_SECONDS", 0.0)
        third = await pool.create(tenant="c")
        assert (await third.execute("1 + 1", timeout=5)).result == "2"


@pytest.mark.parametrize("replaced", [False, True], ids=["returned", "stopped, since there is another"])
async def test_cancelling_while_the_warm_zygote_starts_leaks_no_process(replaced):
    before = children()
    async with Pool(probe(), modules=()) as pool:
        creating = asyncio.create_task(pool.create())
        await asyncio.sleep(0.02)
        assert not creating.done()
        if replaced:
            pool._start_warm_zygote()
        creating.cancel()
        await asyncio.gather(creating, return_exceptions=True)
        assert creating.cancelled()
    assert children() == before


async def test_cancelling_during_eviction_leaks_no_process(monkeypatch):
    monkeypatch.setattr(pools, "MAX_TENANTS", 1)
    monkeypatch.setattr(pools, "_MIN_IDLE_SECONDS", 0.0)
    before = children()
    async with Pool(probe(), modules=()) as pool:
        await (await pool.create(tenant="a")).end("test")
        creating = asyncio.create_task(pool.create(tenant="b"))
        await asyncio.sleep(0)
        assert not pool._tenant_pools  # the first tenant is being evicted
        creating.cancel()
        await asyncio.gather(creating, return_exceptions=True)
        assert creating.cancelled()
    assert children() == before


async def test_a_missing_stack_names_the_extra_to_install():
    with pytest.raises(CannotStart, match=r"pip install 'weakincentives\[sandbox\]'"):
        Pool(probe(), modules=("surely_not_installed",))


@pytest.mark.parametrize("layers", [{"landlock", "seccomp"}, set()], ids=["landlock and seccomp", "none"])
async def test_without_namespaces_the_same_api_works(layers):
    host = replace(probe(), layers=frozenset(layers), cgroups=None)
    async with Pool(host, modules=(), prefork=False) as pool:
        container = await pool.create(ContainerLimits(memory_bytes=256 << 20))
        reply = await container.execute("open('f', 'w').write('x'); import os; os.listdir()", timeout=5)
        assert reply.result == "['f']", reply
        assert container.files.read("f", 10) == b"x"
        tried = await container.execute(
            "open('/var/tmp/antwort-weak', 'w').close(); os.unlink('/var/tmp/antwort-weak')", timeout=5
        )
        assert (tried.error is not None) == ("landlock" in layers)
        directory = Path((await container.execute("print(os.getcwd())", timeout=5)).stdout.strip())
        with_output_dir = await pool.create(output_dir="out")
        seen = await with_output_dir.execute(
            "import os; os.environ['OUTPUT_DIR'] == os.path.join(os.getcwd(), 'out')", timeout=5
        )
        assert seen.result == "True"
        slept = await container.execute(
            "import time; time.sleep(0.5); 'well'", timeout=5
        )  # checked by the watchdog meanwhile
        assert slept.result == "'well'", slept
        await container.end("test")
    assert not directory.parent.exists()


async def test_without_linux_features_code_runs_is_interrupted_and_ends(monkeypatch, tmp_path):
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\n{NOT_LINUX}")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    before = children()
    async with Pool(replace(probe(), layers=frozenset(), cgroups=None), modules=(), prefork=False) as pool:
        container = await pool.create()
        seen = await container.execute("import os; hasattr(os, 'pidfd_open'), os.getpid()", timeout=5)
        assert seen.result == f"(False, {container.pids()[0]})", seen
        seen = await container.execute("import time; kept = 1; time.sleep(60)", timeout=0.3)
        assert (seen.status, container.alive) == ("timeout", True), seen
        assert (await container.execute("kept", timeout=5)).result == "1"
        running = asyncio.create_task(container.execute("while True: pass", timeout=60))
        await wait_until_async(lambda: container.busy)
        await asyncio.sleep(0.2)
        assert container.interrupt()
        assert (await running).status == "interrupted"
        stubborn = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
        seen = await container.execute(stubborn, timeout=0.3)
        assert (seen.status, container.alive, container.pids()) == ("timeout", False, [])
    assert children() == before
