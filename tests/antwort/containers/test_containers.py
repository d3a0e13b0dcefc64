from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from fixtures_containers import OTHER_OWNER, OWNER, chunks

from antwort.api.errors import ApiError
from antwort.config import CodeInterpreterSettings, ContainersSettings
from antwort.containers import AUTO_CONTAINER, Containers, ContainerSpec
from antwort.containers.sandboxes import remote
from antwort.containers.sandboxes.port import ExecutionResult, Output, SandboxLost, SandboxUnavailable
from antwort.engine.replicas.membership import OnlyReplica
from antwort.engine.stores import PageQuery

pytestmark = pytest.mark.anyio


async def refusal(attempt) -> ApiError:
    with pytest.raises(ApiError) as error:
        await attempt
    return error.value


async def status(env, container_id):
    """The record, without postponing expiry."""
    found = await env.store.get_container(OWNER, container_id, env.now)
    return None if found is None else found.status


# ── life ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_container_acquires_its_sandbox_on_first_use(env):
    container_id = await env.create()
    assert env.sandboxes.held == []
    await env.run(container_id, "1")
    assert len(env.sandboxes.held) == 1
    await env.run(container_id, "2")
    assert len(env.sandboxes.held) == 1
    await env.containers.delete(OWNER, container_id)
    assert env.sandboxes.held == []


async def test_an_idle_container_expires_and_releases_its_sandbox(env):
    container_id = await env.create()
    await env.run(container_id, "open('a', 'w')")
    env.now += 20 * 60 - 1
    await env.containers.touch_used()
    await env.containers.expire_idle()
    assert await status(env, container_id) == "running"
    env.now += 1
    error = await refusal(env.run(container_id, "1"))
    assert (error.status, error.message, error.code, error.param) == (400, "Container is expired.", None, None)
    assert (await env.containers.get(OWNER, container_id)).status == "expired"
    await env.containers.touch_used()
    await env.containers.expire_idle()
    await env.sandboxes.all_released()
    assert await env.paths(container_id) == ["a"]
    assert env.metrics.registry.get_sample_value("antwort_sandboxes") == 0
    env.now += 30 * 86_400 + 1
    await env.containers.touch_used()
    await env.containers.expire_idle()
    assert await status(env, container_id) is None


async def test_a_container_in_use_does_not_expire(env):
    container_id = await env.create()
    async with aclosing(env.containers.execute(OWNER, container_id, "print('begun', flush=True)\ninput()")) as steps:
        await anext(steps)
        for _ in range(4):
            env.now += 15 * 60
            await env.containers.touch_used()
            await env.containers.expire_idle()
        assert await status(env, container_id) == "running"
    env.now += 20 * 60
    await env.containers.touch_used()
    await env.containers.expire_idle()
    assert await status(env, container_id) == "expired"


async def test_a_container_marked_as_in_use_does_not_expire(env):
    container_id = await env.create()
    with env.containers.using(OWNER, container_id):
        for _ in range(4):
            env.now += 15 * 60
            await env.containers.touch_used()
            await env.containers.expire_idle()
        assert await status(env, container_id) == "running"
    env.now += 20 * 60
    await env.containers.touch_used()
    await env.containers.expire_idle()
    assert await status(env, container_id) == "expired"


async def test_an_auto_container_waits_for_an_idle_one_to_evict(env):
    containers = env.containers = env.restart(max_containers=2)
    first, second = [(await containers.create(OWNER, ContainerSpec(name=AUTO_CONTAINER))).id for _ in range(2)]
    with containers.using(OWNER, first):
        with containers.using(OWNER, second):
            waiting = asyncio.create_task(containers.create(OWNER, ContainerSpec(name=AUTO_CONTAINER)))
            await asyncio.sleep(0.05)
            assert not waiting.done()
        third = (await waiting).id
        assert [await status(env, one) for one in (first, second, third)] == ["running", "expired", "running"]
        with containers.using(OWNER, third):
            waiting = asyncio.create_task(containers.create(OWNER, ContainerSpec(name=AUTO_CONTAINER)))
            await asyncio.sleep(0.05)
            await containers.delete(OWNER, third)
            await waiting
        assert await status(env, first) == "running"


async def test_waiting_for_eviction_ends_at_the_claim_timeout(env):
    containers = env.restart(CodeInterpreterSettings(claim_timeout=0.1), max_containers=1)
    used = await containers.create(OWNER, ContainerSpec(name=AUTO_CONTAINER))
    with containers.using(OWNER, used.id):
        error = await refusal(containers.create(OWNER, ContainerSpec(name=AUTO_CONTAINER)))
        assert "quota of containers" in error.message
    assert await status(env, used.id) == "running"


async def test_concurrent_new_containers_do_not_evict_each_other(env):
    settings = ContainersSettings(max_containers=2)
    replicas = OnlyReplica("rep_1")
    containers = Containers(env.store, env.sandboxes, settings, CodeInterpreterSettings(), env.metrics, replicas)

    async def visit() -> str | None:
        made = await containers.create(OWNER, ContainerSpec(name=AUTO_CONTAINER))
        with containers.using(OWNER, made.id):
            await asyncio.sleep(0)
            return await status(env, made.id)

    assert set(await asyncio.gather(*(visit() for _ in range(100)))) == {"running"}


async def test_no_wait_where_no_container_could_be_evicted(env):
    containers = env.restart(max_containers=1)
    await containers.create(OWNER, ContainerSpec(name="mine"))
    newcomers = [containers.create(OWNER, ContainerSpec(name=AUTO_CONTAINER)) for _ in range(3)]
    async with asyncio.timeout(10):
        errors = await asyncio.gather(*newcomers, return_exceptions=True)

    assert [getattr(error, "status", None) for error in errors] == [429] * 3


async def test_a_container_larger_than_the_quota_evicts_nothing(env):
    containers = env.restart(max_memory=4 * 2**30)
    idle = await containers.create(OWNER, ContainerSpec(name=AUTO_CONTAINER))
    error = await refusal(containers.create(OWNER, ContainerSpec(name=AUTO_CONTAINER, memory_limit="16g")))

    assert "quota of memory" in error.message
    assert await status(env, idle.id) == "running"


async def test_retrieving_postpones_expiry_and_listing_does_not(env):
    container_id = await env.create()
    env.now += 10
    assert (await env.containers.page(OWNER, PageQuery())).data[0].last_active_at == env.now - 10
    assert (await env.containers.get(OWNER, container_id)).last_active_at == env.now


async def test_newest_live_returns_the_last_running_container(env):
    ids = [await env.create() for _ in range(3)]
    await env.containers.delete(OWNER, ids[2])
    assert (await env.containers.newest_live(OWNER, ids)).id == ids[1]
    assert (await env.containers.newest_live(OWNER, ids[::-1])).id == ids[0]
    assert await env.containers.newest_live(OTHER_OWNER, ids) is None
    assert await env.containers.newest_live(OWNER, []) is None
    env.now += 20 * 60
    assert await env.containers.newest_live(OWNER, ids) is None


async def test_defaults_and_limits_come_from_the_configuration(env):
    containers = env.restart(expires_after=0.5, max_expires_after=60, tiers=["4g", "1g"])
    usual = await containers.create(OWNER, ContainerSpec(name="x"))
    created = await containers.create(OWNER, ContainerSpec(name="x", memory_limit="1g", expires_after_minutes=60))
    assert (usual.memory_limit, usual.memory, usual.expires_after) == ("4g", 4 * 2**30, 30)
    assert (created.memory_limit, created.expires_after) == ("1g", 3600)
    error = await refusal(containers.create(OWNER, ContainerSpec(name="x", memory_limit="16g")))
    assert (error.param, error.message) == ("memory_limit", "Invalid value: '16g'. Supported values are: '4g', '1g'.")
    error = await refusal(containers.create(OWNER, ContainerSpec(name="x", expires_after_minutes=61)))
    assert (error.param, error.code) == ("expires_after.minutes", "integer_above_max_value")
    assert containers.sweep_interval == 5
    assert env.restart(expires_after=0.1).sweep_interval == 1.5


async def test_a_container_whose_files_cannot_be_copied_is_deleted(env):
    file_id = await env.upload("a", b"x")
    env.sandboxes.open.clear()
    making = asyncio.ensure_future(env.containers.create(OWNER, ContainerSpec(name="x", file_ids=[file_id])))
    await env.sandboxes.acquiring.wait()
    making.cancel()
    await asyncio.wait([making])
    assert (await env.containers.page(OWNER, PageQuery())).data == []


async def test_delete_while_the_sandbox_starts(env):
    container_id = await env.create()
    env.sandboxes.open.clear()
    running = asyncio.ensure_future(env.run(container_id, "1"))
    await env.sandboxes.acquiring.wait()
    await env.containers.delete(OWNER, container_id)
    env.sandboxes.open.set()
    assert (await refusal(running)).status == 404
    assert env.sandboxes.held == []


async def test_delete_while_other_operations_wait_for_the_lock(env):
    container_id = await env.create()
    async with aclosing(
        env.containers.execute(OWNER, container_id, "print('begun', flush=True)\nwhile True: pass")
    ) as steps:
        await anext(steps)
        waiting = [asyncio.ensure_future(env.run(container_id, "1")) for _ in range(3)]
        await asyncio.sleep(0.1)
        await env.containers.delete(OWNER, container_id)
        assert (await refusal(anext(steps))).status == 404
    assert [(await refusal(one)).status for one in waiting] == [404] * 3


# ── sandboxes that are lost ──────────────────────────────────────────────────────────────────────────────────────────


async def test_a_sandbox_that_died_while_idle_is_replaced_before_the_code_runs(env):
    container_id = await env.create()
    await env.run(container_id, "x = 1\nopen('a', 'w')")
    await env.sandboxes.kill_all()
    after = await env.run(container_id, "'x' in globals()")
    assert (after.echo, after.sandbox_replaced, after.files) == ("False", True, ())
    assert await env.paths(container_id) == []
    assert (await env.run(container_id, "1")).sandbox_replaced is False
    assert (await env.containers.get(OWNER, container_id)).lost
    assert len(env.sandboxes.held) == 1


async def test_a_sandbox_that_dies_during_an_execution_is_lost(env):
    container_id = await env.create()
    async with aclosing(
        env.containers.execute(OWNER, container_id, "print('begun', flush=True)\nwhile True: pass")
    ) as steps:
        assert await anext(steps) == Output("stdout", "begun\n")
        await env.sandboxes.kill_all()
        last = [step async for step in steps][-1]
    assert isinstance(last, ExecutionResult)
    assert not last.sandbox_alive
    assert (await env.run(container_id, "1")).sandbox_replaced


async def test_files_of_a_dead_sandbox_are_not_found(env):
    container_id = await env.create()
    file = await env.containers.add_file(OWNER, container_id, "a", chunks(b"x"))
    await env.sandboxes.kill_all()
    with pytest.raises(SandboxLost):
        await env.content(container_id, file.id)
    assert (await refusal(env.content(container_id, file.id))).status == 404
    assert env.sandboxes.held == []


async def test_an_upload_to_a_dead_sandbox_fails_and_the_next_one_succeeds(env):
    container_id = await env.create()
    await env.run(container_id, "1")
    await env.sandboxes.kill_all()
    with pytest.raises(SandboxLost):
        await env.containers.add_file(OWNER, container_id, "a", chunks(b"x"))
    await env.containers.add_file(OWNER, container_id, "a", chunks(b"x"))
    assert (await env.run(container_id, "open('a').read()")).sandbox_replaced


async def test_after_a_restart_the_container_runs_and_reports_the_loss(env):
    used, unused, gone = await env.create(), await env.create(), await env.create(expires_after_minutes=1)
    for container_id in (used, gone):
        await env.containers.add_file(OWNER, container_id, "a", chunks(b"x"))
    await env.containers.aclose()
    env.now += 60
    env.containers = env.restart()
    await env.containers.recover()
    assert (await env.containers.get(OWNER, used)).lost == "The server was restarted."
    assert (await env.containers.get(OWNER, unused)).lost is None
    assert await env.paths(used) == []
    assert (await env.run(used, "1")).sandbox_replaced is True
    assert (await env.run(unused, "1")).sandbox_replaced is False
    assert await status(env, gone) == "expired"


# ── running code ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_executions_are_serialized_and_report_their_files(env):
    container_id = await env.create()
    codes = [f"seen = [*globals().get('seen', []), {n}]\nopen('{n}', 'w').write('x')\nseen" for n in range(5)]
    ended = await asyncio.gather(*(env.run(container_id, code) for code in codes))
    assert [one.echo for one in ended] == [str(list(range(n + 1))) for n in range(5)]
    assert [[file.path for file in one.files] for one in ended] == [[str(n)] for n in range(5)]


async def test_a_result_says_that_the_files_are_too_many_to_be_listed(env, monkeypatch):
    monkeypatch.setattr(remote, "_MAX_FILES", 3)
    container_id = await env.create()
    result = await env.run(container_id, "for n in range(5): open(str(n), 'w').close()\n'done'")
    assert (result.echo, result.files) == ("'done'", ())
    assert result.notes == (
        "the files that the code has written are not listed: The container has more than 3 files, or very long paths.",
    )

    result = await env.run(container_id, "import os\nfor n in range(4): os.remove(str(n))")
    assert ([file.path for file in result.files], result.notes) == (["4"], ())


async def test_closing_the_generator_interrupts_the_code(env):
    container_id = await env.create()
    async with aclosing(
        env.containers.execute(OWNER, container_id, "x = 1\nprint('begun', flush=True)\nwhile True: pass")
    ) as steps:
        await anext(steps)
    assert (await env.run(container_id, "x")).echo == "1"
    sample = env.metrics.registry.get_sample_value
    labels = {"work": "execute", "status": "abandoned"}
    assert sample("antwort_sandbox_seconds_count", labels) == 1


async def test_execution_timeout_limits_the_code(env):
    containers = env.restart(CodeInterpreterSettings(execution_timeout=1))
    container = await containers.create(OWNER, ContainerSpec(name="x"))
    async with aclosing(containers.execute(OWNER, container.id, "while True: pass", timeout=100)) as steps:
        last = [step async for step in steps][-1]
    assert isinstance(last, ExecutionResult)
    assert last.status == "timeout"
    await containers.aclose()


async def test_an_acquire_past_the_claim_timeout_is_unavailable(env):
    container_id = await env.create()
    env.containers = env.restart(CodeInterpreterSettings(claim_timeout=1e-6))
    with pytest.raises(SandboxUnavailable):
        await env.run(container_id, "1")
    env.containers = env.restart()
    assert (await env.run(container_id, "1")).sandbox_replaced is False


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_rewritten_file_has_a_new_id(env):
    container_id = await env.create()
    first = await env.containers.add_file(OWNER, container_id, "a", chunks(b"x"))
    ran = await env.run(container_id, "open('a', 'w').write('y')")
    assert [(file.path, file.source) for file in ran.files] == [("a", "assistant")]
    assert ran.files[0].id != first.id
    assert (await refusal(env.content(container_id, first.id))).status == 404
    assert await env.content(container_id, ran.files[0].id) == b"y"


async def test_only_the_first_page_syncs_the_files(env):
    container_id = await env.create()
    for name in "abc":
        await env.containers.add_file(OWNER, container_id, name, chunks(b"1"))
    first = await env.containers.list_files(OWNER, container_id, PageQuery(order="asc", limit=2))
    await env.sandboxes.held[0].write_file("b", chunks(b"22"))  # as code does that was left running
    behind = PageQuery(order="asc", limit=2, after=first.data[-1].id)

    assert [file.path for file in (await env.containers.list_files(OWNER, container_id, behind)).data] == ["c"]
    assert await env.paths(container_id) == ["a", "c", "b"]


async def test_ensure_files_copies_once_and_keeps_changes(env):
    one, other = await env.upload("a", b"1"), await env.upload("b", b"22")
    container_id = await env.create(file_ids=[one])
    await env.run(container_id, "open('a', 'w').write('changed')")
    brought = await env.containers.ensure_files(OWNER, container_id, [one, other, one])
    assert [file.path for file in brought] == ["a", "b"]
    assert (await env.run(container_id, "open('a').read()")).echo == "'changed'"
    await env.run(container_id, "import os; os.remove('b')")
    assert [file.path for file in await env.containers.ensure_files(OWNER, container_id, [one, other])] == ["a", "b"]
    await env.sandboxes.kill_all()
    with pytest.raises(SandboxLost):
        await env.containers.ensure_files(OWNER, container_id, [await env.upload("c", b"333")])
    await env.containers.ensure_files(OWNER, container_id, [one])
    assert (await env.run(container_id, "open('a').read()")).echo == "'1'"


async def test_an_unknown_upload_is_named(env):
    container_id = await env.create()
    other_tenants_file = await env.upload("a", b"x", OTHER_OWNER)
    for attempt, param in (
        (env.containers.create(OWNER, ContainerSpec(name="x", file_ids=[other_tenants_file])), "file_ids"),
        (env.containers.ensure_files(OWNER, container_id, ["file-none"]), "file_ids"),
        (env.containers.add_file_id(OWNER, container_id, other_tenants_file), "file_id"),
    ):
        error = await refusal(attempt)
        assert (error.status, error.param) == (400, param)
    assert env.sandboxes.held == []


async def test_a_container_of_another_owner_is_not_found(env):
    container_id = await env.create()
    file = await env.containers.add_file(OWNER, container_id, "a", chunks(b"x"))
    containers = env.containers
    for attempt in (
        containers.get(OTHER_OWNER, container_id),
        containers.require(OTHER_OWNER, container_id),
        containers.delete(OTHER_OWNER, container_id),
        containers.add_file(OTHER_OWNER, container_id, "a", chunks(b"y")),
        containers.add_file_id(OTHER_OWNER, container_id, "file-1"),
        containers.list_files(OTHER_OWNER, container_id, PageQuery()),
        containers.get_file(OTHER_OWNER, container_id, file.id),
        containers.read_file(OTHER_OWNER, container_id, file.id),
        containers.delete_file(OTHER_OWNER, container_id, file.id),
        containers.unpack(OTHER_OWNER, container_id, chunks(b"")),
        containers.pack(OTHER_OWNER, container_id),
        anext(containers.execute(OTHER_OWNER, container_id, "1")),
    ):
        assert (await refusal(attempt)).status == 404
    assert await env.content(container_id, file.id) == b"x"


async def test_a_file_stream_can_be_closed_early(env):
    container_id = await env.create()
    file = await env.containers.add_file(OWNER, container_id, "a", chunks(bytes(8 << 20)))
    for reads in (0, 1):
        content = await env.containers.read_file(OWNER, container_id, file.id)
        for _ in range(reads):
            assert await anext(content)
        await content.aclose()
    env.now += 20 * 60
    await env.containers.touch_used()
    await env.containers.expire_idle()
    assert await status(env, container_id) == "expired"
