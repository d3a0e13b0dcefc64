from __future__ import annotations

import asyncio
import io
import tarfile
from contextlib import aclosing

import pytest
from fake_base_sandbox import NEEDS_A_SESSION, base_sandbox
from fake_trickling_server import trickling_server

from antwort.containers.sandboxes import one_shot
from antwort.containers.sandboxes.one_shot import OneShotSandbox
from antwort.containers.sandboxes.port import SandboxProtocolError, SandboxRefused, SandboxUnavailable
from antwort.containers.sandboxes.remote import RemoteSandboxes
from antwort.testing.sandbox_backend import SandboxesConformance, acquired, chunks, printed, read, result_of

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def running():
    with base_sandbox() as running:
        yield running


@pytest.fixture(scope="module")
async def sandboxes(running):
    backend = RemoteSandboxes(running.url)
    yield backend
    await backend.aclose()


class TestOneShotSandboxes(SandboxesConformance):
    pass


for name in NEEDS_A_SESSION:
    assert hasattr(SandboxesConformance, name), name
    setattr(TestOneShotSandboxes, name, None)


async def test_a_server_without_sessions_is_detected(running, sandboxes):
    await sandboxes.check()
    assert not await sandboxes.is_stateful()
    async with acquired(sandboxes) as sandbox:
        assert isinstance(sandbox, OneShotSandbox)


async def test_files_of_a_run_are_kept_and_a_rewritten_one_is_another_version(sandboxes):
    save = "import os; open(os.environ['OUTPUT_DIR'] + '/x', 'w').write('1')"
    async with acquired(sandboxes) as sandbox:
        await result_of(sandbox, save)
        before = await sandbox.list_files()
        await result_of(sandbox, save)
        after = await sandbox.list_files()
    assert [(file.path, file.size) for file in before] == [("x", 1)]
    assert before != after


async def test_a_directory_is_not_replaced_by_a_file(sandboxes, running):
    async with acquired(sandboxes) as sandbox:
        running.produces = {"a/b": b"1"}
        await result_of(sandbox, "")
        running.produces = {"a": b"2", "a/b/c": b"3", "d": b"4"}
        result = await result_of(sandbox, "")
        running.produces = {}
        assert [file.path for file in await sandbox.list_files()] == ["a/b", "d"]
        assert ["not kept" in note for note in result.notes] == [True, True]
        assert printed(result) == ""
        assert await sandbox.delete_file("a")
        assert [file.path for file in await sandbox.list_files()] == ["d"]


async def test_a_server_at_capacity_is_asked_until_the_claim_timeout(running):
    async with aclosing(RemoteSandboxes(running.url)) as sandboxes:
        sandbox = await sandboxes.acquire(tenant="t", memory_limit="1g", timeout=0.05)
        running.busy = 1
        with pytest.raises(SandboxUnavailable, match="Every sandbox is in use"):
            await result_of(sandbox, "1")


async def test_an_execution_ends_in_time_though_the_server_sends_on(monkeypatch):
    monkeypatch.setattr(one_shot, "_REPLY_MARGIN", 0.1)
    async with (
        trickling_server(b"content-length: 1000000\r\n\r\n", b" ") as url,
        aclosing(RemoteSandboxes(url)) as server,
        asyncio.timeout(60),
    ):
        sandbox = OneShotSandbox(server, capacity_timeout=1)
        with pytest.raises(SandboxUnavailable, match=r"has not sent its reply within 1\.1 s"):
            await anext(sandbox.run("1", timeout=1))
        await sandbox.end()


async def test_a_server_of_another_kind_is_named(running):
    async with aclosing(RemoteSandboxes(f"{running.url}/elsewhere")) as sandboxes:
        with pytest.raises(SandboxUnavailable, match="not a sandbox server"):
            await sandboxes.check()
        sandbox = await sandboxes.acquire(tenant="t", memory_limit="1g", timeout=5)
        with pytest.raises(SandboxProtocolError, match="neither /sessions nor /execute"):
            await result_of(sandbox, "1")


async def test_a_file_that_is_replaced_while_it_is_read_keeps_its_content(sandboxes):
    async with acquired(sandboxes) as sandbox:
        for name in ("a", "b", "c"):
            await sandbox.write_file(name, chunks(name.encode() * 3_000_000))
        async with aclosing(sandbox.pack()) as packed:
            first = await anext(packed)
            await sandbox.write_file("b", chunks(b"short"))
            await sandbox.delete_file("c")
            rest = [chunk async for chunk in packed]
        with tarfile.open(fileobj=io.BytesIO(first + b"".join(rest))) as archive:
            assert {member.name: member.size for member in archive} == dict.fromkeys("abc", 3_000_000)


async def test_replaced_content_is_removed_in_time(sandboxes):
    async with acquired(sandboxes) as sandbox:
        for number in range(5):
            await sandbox.write_file("kept", chunks(b"kept"))
            await sandbox.write_file("x", chunks(bytes([number]) * (39 << 20), 1 << 20))
        assert set(await read(sandbox.read_file("x"))) == {4}
        assert await read(sandbox.read_file("kept")) == b"kept"


@pytest.mark.parametrize(
    "report, status, reason",
    [
        ({"status": "error", "exit_code": -9}, "ended", "by signal 9"),
        ({"status": "error", "exit_code": 0}, "error", None),
        ({"status": "success", "exit_code": 0, "stdout": None, "files_produced": None}, "ok", None),
        ({"status": "error", "exit_code": -1, "execution_time_ms": 60_000.5}, "timeout", None),
    ],
)
async def test_reports_of_other_servers(running, sandboxes, monkeypatch, report, status, reason):
    monkeypatch.setattr(running, "execute", lambda _: report)
    async with acquired(sandboxes) as sandbox:
        result = await result_of(sandbox, "1")
    assert (result.status, result.reason) == (status, reason)
    assert result.notes == (("exit code 0",) if status == "error" else ())


async def test_options_of_installers_are_refused(running, sandboxes):
    sent = len(running.requests)
    async with acquired(sandboxes) as sandbox:
        for requirement in ("--index-url=http://x", " -r file", "git+ssh://host/x"):
            with pytest.raises(SandboxRefused, match="not a package name"):
                await anext(sandbox.run("1", requirements=[requirement], timeout=5))
    assert len(running.requests) == sent


async def test_a_server_that_does_not_answer_counts_as_stateful():
    async with aclosing(RemoteSandboxes("http://127.0.0.1:9")) as sandboxes:
        assert await sandboxes.is_stateful()
