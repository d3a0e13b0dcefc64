from __future__ import annotations

import asyncio
import os
import signal
from contextlib import aclosing
from pathlib import Path

import pytest

from antwort.containers.sandboxes.local import LocalSandboxes
from antwort.containers.sandboxes.port import ExecutionResult, JailUnavailable, Sandbox, SandboxLost, SandboxUnavailable

pytestmark = pytest.mark.anyio

OTHERS: set[int] = set()


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(autouse=True)
def others():
    """Processes of longer-lived fixtures of other tests."""
    OTHERS.update(children())
    yield
    OTHERS.clear()


@pytest.fixture
async def local(tmp_path):
    sandboxes = LocalSandboxes(tmp_path / "state", max_output=2000)
    yield sandboxes
    await sandboxes.aclose()
    assert children() == []


def children(of: int | None = None) -> list[int]:
    """The running children of a process, by default of this one."""
    found = Path(f"/proc/{of or os.getpid()}/task").glob("*/children")
    return [
        int(pid)
        for file in found
        for pid in file.read_text(encoding="ascii").split()
        if "(zombie)" not in status(int(pid)) and int(pid) not in OTHERS
    ]


def status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except FileNotFoundError:
        return "(zombie)"


async def acquired(local: LocalSandboxes) -> Sandbox:
    return await local.acquire(tenant="t", memory_limit="1g", timeout=30)


async def echo(sandbox: Sandbox, code: str) -> str | None:
    async with aclosing(sandbox.run(code, timeout=30)) as steps:
        *_, last = [step async for step in steps]
    assert isinstance(last, ExecutionResult)
    return last.echo


async def test_the_child_starts_on_first_use(local):
    assert children() == []
    await local.start()
    assert len(children()) == 1


async def test_concurrent_acquires_start_one_child(local):
    sandboxes = await asyncio.gather(*(acquired(local) for _ in range(4)))
    assert len(children()) == 1
    assert await echo(sandboxes[3], "1 + 1") == "2"


async def test_a_dead_child_is_replaced_and_its_sandboxes_are_lost(local):
    before = await acquired(local)
    await echo(before, "x = 1")
    (pid,) = children()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(SandboxLost):
        await echo(before, "x")
    after = await acquired(local)
    assert await echo(after, "'x' in globals()") == "False"
    with pytest.raises(SandboxLost):
        await echo(before, "x")
    await local.release(before)
    assert await echo(after, "1") == "1"


async def test_a_child_that_dies_during_a_run(local):
    sandbox = await acquired(local)
    (pid,) = children()
    async with aclosing(sandbox.run("print('begun', flush=True)\nwhile True: pass", timeout=60)) as steps:
        await anext(steps)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(SandboxLost):
            await anext(steps)


async def test_a_failed_start_is_jail_unavailable_with_the_reason(tmp_path):
    environment = {**os.environ, "SANDBOX_MODE": "node"}
    sandboxes = LocalSandboxes(tmp_path, max_output=2000, environment=environment)
    for _ in range(2):
        with pytest.raises(JailUnavailable, match="SANDBOX_MODE=node is not there yet; use python"):
            await sandboxes.start()
    await sandboxes.aclose()
    assert children() == []


async def test_the_child_inherits_no_secrets(tmp_path):
    environment = {**os.environ, "OPENAI_API_KEY": "sk-secret", "ANTWORT_X": "y", "SANDBOX_MAX_SESSIONS": "7"}
    sandboxes = LocalSandboxes(tmp_path, max_output=2000, environment=environment)
    await sandboxes.start()
    (pid,) = children()
    handed = await asyncio.to_thread(Path(f"/proc/{pid}/environ").read_bytes)
    await sandboxes.aclose()

    assert b"sk-secret" not in handed
    assert b"ANTWORT_X" not in handed
    assert b"SANDBOX_MAX_SESSIONS=7" in handed


async def test_the_child_gets_the_execution_timeout(tmp_path):
    environment = {**os.environ, "SANDBOX_MAX_TIMEOUT_SECONDS": "1"}
    sandboxes = LocalSandboxes(tmp_path, max_output=2000, max_seconds=7199.5, environment=environment)
    await sandboxes.start()
    (pid,) = children()
    handed = await asyncio.to_thread(Path(f"/proc/{pid}/environ").read_bytes)
    await sandboxes.aclose()

    assert b"SANDBOX_MAX_TIMEOUT_SECONDS=7200\0" in handed


async def test_the_child_gets_the_output_limit(local):
    sandbox = await acquired(local)
    async with aclosing(sandbox.run("print('x' * 50_000)", timeout=30)) as steps:
        *_, last = [step async for step in steps]
    assert isinstance(last, ExecutionResult)
    assert last.cut_bytes > 40_000


async def test_a_closed_backend_starts_no_child(tmp_path):
    sandboxes = LocalSandboxes(tmp_path, max_output=2000)
    await sandboxes.aclose()
    with pytest.raises(SandboxUnavailable):
        await acquired(sandboxes)


async def test_two_servers_with_one_state_directory_have_sandboxes_of_their_own(tmp_path):
    first, second = (LocalSandboxes(tmp_path / "state", max_output=2000) for _ in range(2))
    kept = await first.acquire(tenant="a", memory_limit="1g", timeout=20)
    other = await second.acquire(tenant="a", memory_limit="1g", timeout=20)
    await second.aclose()
    with pytest.raises(SandboxLost):
        await other.list_files()
    assert await kept.list_files() == []
    await first.aclose()
    again = LocalSandboxes(tmp_path / "state", max_output=2000)
    assert again._socket_path() == tmp_path / "state" / "run" / "sandbox.sock"
    await again.aclose()


async def test_a_long_state_path_uses_a_short_socket_path(tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    monkeypatch.setattr("tempfile.tempdir", str(deep))  # TMPDIR, as the standard library remembers it
    sandboxes = LocalSandboxes(deep / "state", max_output=2000)
    sandbox = await acquired(sandboxes)
    assert await echo(sandbox, "1 + 1") == "2"
    socket = sandboxes._socket_path()
    assert await asyncio.to_thread(socket.exists)
    await sandboxes.aclose()
    assert children() == []
    assert not await asyncio.to_thread(socket.parent.exists)
