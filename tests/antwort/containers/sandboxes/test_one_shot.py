from __future__ import annotations

from contextlib import aclosing

import pytest
from fake_base_sandbox import base_sandbox

from antwort.containers.sandboxes.one_shot import OneShotSandbox
from antwort.containers.sandboxes.port import SandboxProtocolError, SandboxUnavailable
from antwort.containers.sandboxes.remote import RemoteSandboxes
from antwort.testing.sandbox_backend import SandboxesConformance, acquired, printed, result_of

pytestmark = pytest.mark.anyio

NEEDS_A_SESSION = {
    "test_output_is_streamed_and_the_last_value_is_echoed",
    "test_output_arrives_while_the_code_runs",
    "test_variables_persist",
    "test_a_timeout_interrupts_the_code_and_keeps_variables",
    "test_a_run_can_be_interrupted",
    "test_out_of_memory_ends_the_sandbox_with_status_oom",
    "test_an_interpreter_that_exits_is_lost",
    "test_figures_are_png_images",
    "test_long_output_is_truncated",
    "test_five_megabytes_of_code",
    "test_files_are_written_listed_read_and_deleted",
    "test_a_rewritten_file_has_another_modification_time",
    "test_sandboxes_are_isolated",
    "test_five_sandboxes_at_once",
    "test_an_unknown_memory_limit_is_refused",
}
"""Tests of variables, echo, live output, /mnt/data or tiers, which the base protocol does not have."""


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
    assert not sandboxes.is_stateful
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
        assert printed(result).count("a file was not kept") == 2
        assert await sandbox.delete_file("a")
        assert [file.path for file in await sandbox.list_files()] == ["d"]


async def test_a_server_at_capacity_is_asked_until_the_claim_timeout(running):
    async with aclosing(RemoteSandboxes(running.url)) as sandboxes:
        sandbox = await sandboxes.acquire(tenant="t", memory_limit="1g", timeout=0.05)
        running.busy = 1
        with pytest.raises(SandboxUnavailable, match="Every sandbox is in use"):
            await result_of(sandbox, "1")


async def test_a_server_of_another_kind_is_named(running):
    async with aclosing(RemoteSandboxes(f"{running.url}/elsewhere")) as sandboxes:
        with pytest.raises(SandboxProtocolError, match="not a sandbox server"):
            await sandboxes.check()
        sandbox = await sandboxes.acquire(tenant="t", memory_limit="1g", timeout=5)
        with pytest.raises(SandboxProtocolError, match="neither /sessions nor /execute"):
            await result_of(sandbox, "1")
