"""Sandboxes of several replicas: here several `Containers` in one process, on one store and one sandbox server."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from fixtures_containers import OWNER, ContainerEnv, chunks

from antwort.api.errors import ApiError
from antwort.config import CodeInterpreterSettings, ContainersSettings
from antwort.containers import Containers, ContainerSpec
from antwort.containers.registry import HeldElsewhere
from antwort.containers.sandboxes.port import ExecutionResult, SandboxLost, SandboxUnavailable
from antwort.engine.stores import PageQuery, SandboxRef

pytestmark = pytest.mark.anyio


class Directory:
    """A `ReplicaDirectory` that the test changes."""

    def __init__(self, own_id: str, ended: set[str]) -> None:
        self.own_id = own_id
        self._ended = ended

    def is_live(self, replica_id: str) -> bool:
        return replica_id not in self._ended

    def url(self, replica_id: str) -> str | None:
        return None


class Pair:
    """Two replicas; `ended` are those that count as dead."""

    def __init__(self, env: ContainerEnv) -> None:
        self.ended: set[str] = set()
        self.first, self.second = (self._open(env, name) for name in ("rep_a", "rep_b"))

    def _open(self, env: ContainerEnv, name: str) -> Containers:
        settings, interpreter = ContainersSettings(), CodeInterpreterSettings(execution_timeout=20)
        directory = Directory(name, self.ended)
        return Containers(
            env.store, env.sandboxes, settings, interpreter, env.metrics, directory, clock=lambda: env.now
        )


@pytest.fixture
async def pair(env):
    opened = Pair(env)
    yield opened
    await opened.first.aclose()
    await opened.second.aclose()


async def run(containers: Containers, container_id: str, code: str) -> ExecutionResult:
    async with aclosing(containers.execute(OWNER, container_id, code)) as steps:
        last = [step async for step in steps][-1]
    assert isinstance(last, ExecutionResult)
    return last


async def test_of_two_first_uses_one_keeps_its_sandbox(env, pair):
    container = await pair.first.create(OWNER, ContainerSpec(name="x"))
    ran = await asyncio.gather(
        *(run(containers, container.id, "1") for containers in (pair.first, pair.second)), return_exceptions=True
    )
    assert sum(isinstance(one, ExecutionResult) for one in ran) == 1
    assert sum(isinstance(one, SandboxUnavailable) for one in ran) == 1  # here replicas cannot reach each other
    assert len(env.sandboxes.held) == 1


async def test_a_sandbox_of_another_replica_is_not_replaced(env, pair):
    container = await pair.first.create(OWNER, ContainerSpec(name="x"))
    await run(pair.first, container.id, "x = 1")
    record = await env.store.get_container(OWNER, container.id, env.now)
    with pytest.raises(HeldElsewhere):
        await pair.second.local.prepare(OWNER, record)
    with pytest.raises(HeldElsewhere):
        await pair.second.held(OWNER, container.id, record.sandbox)
    assert (await run(pair.first, container.id, "x")).echo == "1"
    assert len(env.sandboxes.held) == 1


async def test_the_sandboxes_of_a_dead_replica_are_lost_once(env, pair):
    container = await pair.first.create(OWNER, ContainerSpec(name="x"))
    await pair.first.add_file(OWNER, container.id, "a", chunks(b"x"))
    pair.ended.add("rep_a")
    await pair.second.reconcile()
    await pair.second.reconcile()
    sample = {"event": "lost", "tier": "1g"}
    assert env.metrics.registry.get_sample_value("antwort_containers_total", sample) == 1
    found = await pair.second.get(OWNER, container.id)
    assert (found.lost, found.replica, found.sandbox) == ("The server that ran it has stopped.", None, None)
    assert (await run(pair.second, container.id, "1")).sandbox_replaced
    await pair.first.reconcile()  # it was only paused
    assert len(env.sandboxes.held) == 1


async def test_a_replica_that_was_taken_for_dead_stores_nothing(env, pair):
    container = await pair.first.create(OWNER, ContainerSpec(name="x"))
    await run(pair.first, container.id, "1")
    stale = await env.store.get_container(OWNER, container.id, env.now)
    pair.ended.add("rep_a")
    await run(pair.second, container.id, "open('new', 'w')")
    with pytest.raises(SandboxLost, match="did not respond"):  # in the middle of an operation
        await pair.first.local.put_file(OWNER, stale, "old", chunks(b"x"))
    current = await env.store.get_container(OWNER, container.id, env.now)
    assert current.replica == "rep_b"
    with pytest.raises(HeldElsewhere):  # afterwards
        await pair.first.local.put_file(OWNER, current, "old", chunks(b"x"))
    page = await pair.second.list_files(OWNER, container.id, PageQuery())
    assert [file.path for file in page.data] == ["new"]
    assert (await env.store.container_use(OWNER, env.now)).disk == 0
    assert not await env.store.mark_sandbox_lost(OWNER, container.id, SandboxRef("rep_a", stale.sandbox), "stale")
    assert len(env.sandboxes.held) == 1


@pytest.mark.parametrize("how", ["delete", "expire"])
async def test_a_container_that_another_replica_ends_is_released(env, pair, how):
    container = await pair.first.create(OWNER, ContainerSpec(name="x"))
    await run(pair.first, container.id, "1")
    if how == "delete":
        await pair.second.delete(OWNER, container.id)
    else:
        env.now += 20 * 60
        await pair.second.expire_idle()
    assert len(env.sandboxes.held) == 1
    await pair.first.reconcile()
    await env.sandboxes.all_released()


async def test_ended_replicas_are_swept_until_that_succeeds(env, pair):
    pair.ended.add("rep_a")
    pair.second.note_ended("rep_a")
    env.sandboxes.sweep_fault = SandboxUnavailable("The API server is away.")
    await pair.second.reconcile()
    env.sandboxes.sweep_fault = None
    await pair.second.reconcile()
    await pair.second.reconcile()
    assert env.sandboxes.swept == [{"rep_a"}, {"rep_a"}]


async def test_a_replica_that_has_come_back_is_not_swept(env, pair):
    """Its sandboxes of before are released by itself, and it has new ones."""
    pair.second.note_ended("rep_a")
    await pair.second.reconcile()
    pair.ended.add("rep_a")
    await pair.second.reconcile()
    assert env.sandboxes.swept == []


async def test_a_container_that_is_deleted_while_its_sandbox_is_acquired(env, pair):
    containers = pair.first
    record = await containers.create(OWNER, ContainerSpec(name="x"))
    env.sandboxes.open.clear()
    running = asyncio.create_task(run(containers, record.id, "1"))
    await env.sandboxes.acquiring.wait()
    await containers.delete(OWNER, record.id)

    with pytest.raises(ApiError, match="not found"):
        await running


async def test_a_caller_that_is_cancelled_just_after_the_acquisition_leaves_no_sandbox(env, pair):
    containers = pair.first
    record = await containers.create(OWNER, ContainerSpec(name="x"))
    running = asyncio.create_task(run(containers, record.id, "1"))
    env.sandboxes.on_acquired = lambda: asyncio.get_running_loop().call_soon(running.cancel)

    with pytest.raises(asyncio.CancelledError):
        await running
    await env.sandboxes.all_released()
