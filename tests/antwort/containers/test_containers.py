from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from fixtures_containers import THEM, US, pieces

from antwort.api.errors import ApiError
from antwort.config import CodeInterpreterSettings, ContainersSettings
from antwort.containers import AUTO, Containers, ContainerSpec, Executed
from antwort.containers.sandboxes import Output, SandboxFault, SandboxLost
from antwort.engine.stores import PageQuery

pytestmark = pytest.mark.anyio


async def refusal(attempt) -> ApiError:
    with pytest.raises(ApiError) as error:
        await attempt
    return error.value


async def status(place, container_id):
    """Without using it."""
    found = await place.store.get_container(US, container_id, place.now)
    return None if found is None else found.status


# ── life ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_container_gets_a_sandbox_when_it_needs_one(place):
    container_id = await place.create()
    assert place.sandboxes.held == []
    await place.run(container_id, "1")
    assert len(place.sandboxes.held) == 1
    await place.run(container_id, "2")
    assert len(place.sandboxes.held) == 1
    await place.containers.delete(US, container_id)
    assert place.sandboxes.held == []


async def test_idle_for_long_it_expires_and_its_sandbox_goes(place):
    container_id = await place.create()
    await place.run(container_id, "open('a', 'w')")
    place.now += 20 * 60 - 1
    await place.containers.sweep()
    assert await status(place, container_id) == "running"
    place.now += 1
    error = await refusal(place.run(container_id, "1"))
    assert (error.status, error.message, error.code, error.param) == (400, "Container is expired.", None, None)
    assert (await place.containers.get(US, container_id)).status == "expired"
    await place.containers.sweep()
    await place.sandboxes.all_released()
    assert await place.paths(container_id) == ["a"]
    assert place.metrics.registry.get_sample_value("antwort_sandboxes") == 0
    place.now += 30 * 86_400 + 1
    await place.containers.sweep()
    assert await status(place, container_id) is None


async def test_what_is_in_use_does_not_expire(place):
    container_id = await place.create()
    async with aclosing(place.containers.execute(US, container_id, "print('begun', flush=True)\ninput()")) as steps:
        await anext(steps)
        for _ in range(4):
            place.now += 15 * 60
            await place.containers.sweep()
        assert await status(place, container_id) == "running"
    place.now += 20 * 60
    await place.containers.sweep()
    assert await status(place, container_id) == "expired"


async def test_what_somebody_keeps_in_use_does_not_expire_though_nothing_runs_in_it(place):
    container_id = await place.create()
    with place.containers.using(US, container_id):
        for _ in range(4):
            place.now += 15 * 60
            await place.containers.sweep()
        assert await status(place, container_id) == "running"
    place.now += 20 * 60
    await place.containers.sweep()
    assert await status(place, container_id) == "expired"


async def test_a_container_of_a_tools_own_waits_for_room_and_takes_none_that_is_used(place):
    containers = place.containers = place.made(max_containers=2)
    first, second = [(await containers.create(US, ContainerSpec(name=AUTO))).id for _ in range(2)]
    with containers.using(US, first):
        with containers.using(US, second):
            waiting = asyncio.create_task(containers.create(US, ContainerSpec(name=AUTO)))
            await asyncio.sleep(0.05)
            assert not waiting.done()
        third = (await waiting).id
        assert [await status(place, one) for one in (first, second, third)] == ["running", "expired", "running"]
        with containers.using(US, third):
            waiting = asyncio.create_task(containers.create(US, ContainerSpec(name=AUTO)))
            await asyncio.sleep(0.05)
            await containers.delete(US, third)
            await waiting
        assert await status(place, first) == "running"


async def test_room_that_does_not_come_is_not_waited_for_longer_than_for_a_sandbox(place):
    containers = place.made(CodeInterpreterSettings(claim_timeout=0.1), max_containers=1)
    used = await containers.create(US, ContainerSpec(name=AUTO))
    with containers.using(US, used.id):
        error = await refusal(containers.create(US, ContainerSpec(name=AUTO)))
        assert "quota of containers" in error.message
    assert await status(place, used.id) == "running"


async def test_many_newcomers_at_once_take_no_room_from_each_other(place):
    settings = ContainersSettings(max_containers=2)
    containers = Containers(place.store, place.sandboxes, settings, CodeInterpreterSettings(), place.metrics)

    async def visit() -> str | None:
        made = await containers.create(US, ContainerSpec(name=AUTO))
        with containers.using(US, made.id):
            await asyncio.sleep(0)
            return await status(place, made.id)

    assert set(await asyncio.gather(*(visit() for _ in range(100)))) == {"running"}


async def test_where_nobody_could_leave_nobody_waits(place):
    containers = place.made(max_containers=1)
    await containers.create(US, ContainerSpec(name="mine"))
    newcomers = [containers.create(US, ContainerSpec(name=AUTO)) for _ in range(3)]
    async with asyncio.timeout(10):
        errors = await asyncio.gather(*newcomers, return_exceptions=True)

    assert [getattr(error, "status", None) for error in errors] == [429] * 3


async def test_a_wish_that_can_never_be_takes_no_room_of_others(place):
    containers = place.made(max_memory=4 * 2**30)
    idle = await containers.create(US, ContainerSpec(name=AUTO))
    error = await refusal(containers.create(US, ContainerSpec(name=AUTO, memory_limit="16g")))

    assert "quota of memory" in error.message
    assert await status(place, idle.id) == "running"


async def test_to_look_at_it_is_to_use_it_and_to_list_it_is_not(place):
    container_id = await place.create()
    place.now += 10
    assert (await place.containers.page(US, PageQuery())).data[0].last_active_at == place.now - 10
    assert (await place.containers.get(US, container_id)).last_active_at == place.now


async def test_the_newest_that_lives_is_found(place):
    ids = [await place.create() for _ in range(3)]
    await place.containers.delete(US, ids[2])
    assert (await place.containers.newest_live(US, ids)).id == ids[1]
    assert (await place.containers.newest_live(US, ids[::-1])).id == ids[0]
    assert await place.containers.newest_live(THEM, ids) is None
    assert await place.containers.newest_live(US, []) is None
    place.now += 20 * 60
    assert await place.containers.newest_live(US, ids) is None


async def test_the_configuration_says_what_is_usual_and_what_may_be(place):
    containers = place.made(expires_after=0.5, max_expires_after=60, tiers=["4g", "1g"])
    usual = await containers.create(US, ContainerSpec(name="x"))
    asked = await containers.create(US, ContainerSpec(name="x", memory_limit="1g", minutes=60))
    assert (usual.memory_limit, usual.memory, usual.expires_after) == ("4g", 4 * 2**30, 30)
    assert (asked.memory_limit, asked.expires_after) == ("1g", 3600)
    error = await refusal(containers.create(US, ContainerSpec(name="x", memory_limit="16g")))
    assert (error.param, error.message) == ("memory_limit", "Invalid value: '16g'. Supported values are: '4g', '1g'.")
    error = await refusal(containers.create(US, ContainerSpec(name="x", minutes=61)))
    assert (error.param, error.code) == ("expires_after.minutes", "integer_above_max_value")
    assert containers.beat == 5
    assert place.made(expires_after=0.1).beat == 1.5


async def test_a_container_that_cannot_be_filled_is_not_made(place):
    file_id = await place.upload("a", b"x")
    place.sandboxes.open.clear()
    making = asyncio.ensure_future(place.containers.create(US, ContainerSpec(name="x", file_ids=[file_id])))
    await place.sandboxes.asked.wait()
    making.cancel()
    await asyncio.wait([making])
    assert (await place.containers.page(US, PageQuery())).data == []


async def test_deleted_while_its_sandbox_comes_up(place):
    container_id = await place.create()
    place.sandboxes.open.clear()
    running = asyncio.ensure_future(place.run(container_id, "1"))
    await place.sandboxes.asked.wait()
    await place.containers.delete(US, container_id)
    place.sandboxes.open.set()
    assert (await refusal(running)).status == 404
    assert place.sandboxes.held == []


async def test_deleted_while_others_wait_for_their_turn(place):
    container_id = await place.create()
    async with aclosing(
        place.containers.execute(US, container_id, "print('begun', flush=True)\nwhile True: pass")
    ) as steps:
        await anext(steps)
        waiting = [asyncio.ensure_future(place.run(container_id, "1")) for _ in range(3)]
        await asyncio.sleep(0.1)
        await place.containers.delete(US, container_id)
        assert (await refusal(anext(steps))).status == 404
    assert [(await refusal(one)).status for one in waiting] == [404] * 3


# ── sandboxes that are lost ──────────────────────────────────────────────────────────────────────────────────────────


async def test_one_that_died_while_nobody_used_it_is_replaced_before_the_code_runs(place):
    container_id = await place.create()
    await place.run(container_id, "x = 1\nopen('a', 'w')")
    await place.sandboxes.die()
    after = await place.run(container_id, "'x' in globals()")
    assert (after.outcome.echo, after.replaced, after.files) == ("False", True, [])
    assert await place.paths(container_id) == []
    assert (await place.run(container_id, "1")).replaced is False
    assert (await place.containers.get(US, container_id)).lost
    assert len(place.sandboxes.held) == 1


async def test_one_that_dies_over_the_code_is_lost_and_the_next_call_says_so(place):
    container_id = await place.create()
    async with aclosing(
        place.containers.execute(US, container_id, "print('begun', flush=True)\nwhile True: pass")
    ) as steps:
        assert await anext(steps) == Output("stdout", "begun\n")
        await place.sandboxes.die()
        last = [step async for step in steps][-1]
    assert isinstance(last, Executed)
    assert not last.outcome.alive
    assert (await place.run(container_id, "1")).replaced


async def test_files_of_one_that_died_are_not_there_any_more(place):
    container_id = await place.create()
    file = await place.containers.add_file(US, container_id, "a", pieces(b"x"))
    await place.sandboxes.die()
    with pytest.raises(SandboxLost):
        await place.content(container_id, file.id)
    assert (await refusal(place.content(container_id, file.id))).status == 404
    assert place.sandboxes.held == []


async def test_an_upload_that_finds_it_dead_is_told_and_the_next_one_goes_in(place):
    container_id = await place.create()
    await place.run(container_id, "1")
    await place.sandboxes.die()
    with pytest.raises(SandboxLost):
        await place.containers.add_file(US, container_id, "a", pieces(b"x"))
    await place.containers.add_file(US, container_id, "a", pieces(b"x"))
    assert (await place.run(container_id, "open('a').read()")).replaced


async def test_after_a_restart_the_container_lives_and_says_what_is_gone(place):
    used, unused, gone = await place.create(), await place.create(), await place.create(minutes=1)
    for container_id in (used, gone):
        await place.containers.add_file(US, container_id, "a", pieces(b"x"))
    await place.containers.aclose()
    place.now += 60
    place.containers = place.made()
    await place.containers.recover()
    assert (await place.containers.get(US, used)).lost == "The server was restarted."
    assert (await place.containers.get(US, unused)).lost is None
    assert await place.paths(used) == []
    assert (await place.run(used, "1")).replaced is True
    assert (await place.run(unused, "1")).replaced is False
    assert await status(place, gone) == "expired"


# ── running code ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_code_runs_in_turn_and_what_it_made_is_told(place):
    container_id = await place.create()
    codes = [f"seen = [*globals().get('seen', []), {n}]\nopen('{n}', 'w').write('x')\nseen" for n in range(5)]
    ended = await asyncio.gather(*(place.run(container_id, code) for code in codes))
    assert [one.outcome.echo for one in ended] == [str(list(range(n + 1))) for n in range(5)]
    assert [[file.path for file in one.files] for one in ended] == [[str(n)] for n in range(5)]


async def test_whoever_goes_interrupts_the_code(place):
    container_id = await place.create()
    async with aclosing(
        place.containers.execute(US, container_id, "x = 1\nprint('begun', flush=True)\nwhile True: pass")
    ) as steps:
        await anext(steps)
    assert (await place.run(container_id, "x")).outcome.echo == "1"
    told = place.metrics.registry.get_sample_value
    labels = {"work": "execute", "status": "abandoned"}
    assert told("antwort_sandbox_seconds_count", labels) == 1


async def test_the_configuration_limits_how_long_code_runs(place):
    containers = place.made(CodeInterpreterSettings(execution_timeout=1))
    container = await containers.create(US, ContainerSpec(name="x"))
    async with aclosing(containers.execute(US, container.id, "while True: pass", timeout=100)) as steps:
        last = [step async for step in steps][-1]
    assert isinstance(last, Executed)
    assert last.outcome.status == "timeout"
    await containers.aclose()


async def test_a_claim_that_takes_too_long_is_a_fault(place):
    container_id = await place.create()
    place.containers = place.made(CodeInterpreterSettings(claim_timeout=1e-6))
    with pytest.raises(SandboxFault):
        await place.run(container_id, "1")
    place.containers = place.made()
    assert (await place.run(container_id, "1")).replaced is False


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_file_that_is_written_again_is_another_file(place):
    container_id = await place.create()
    first = await place.containers.add_file(US, container_id, "a", pieces(b"x"))
    ran = await place.run(container_id, "open('a', 'w').write('y')")
    assert [(file.path, file.source) for file in ran.files] == [("a", "assistant")]
    assert ran.files[0].id != first.id
    assert (await refusal(place.content(container_id, first.id))).status == 404
    assert await place.content(container_id, ran.files[0].id) == b"y"


async def test_pages_behind_the_first_are_of_the_same_look(place):
    container_id = await place.create()
    for name in "abc":
        await place.containers.add_file(US, container_id, name, pieces(b"1"))
    first = await place.containers.list_files(US, container_id, PageQuery(order="asc", limit=2))
    await place.sandboxes.held[0].write_file("b", pieces(b"22"))  # as code does that was left running
    behind = PageQuery(order="asc", limit=2, after=first.data[-1].id)

    assert [file.path for file in (await place.containers.list_files(US, container_id, behind)).data] == ["c"]
    assert await place.paths(container_id) == ["a", "c", "b"]


async def test_uploaded_files_are_brought_once_and_what_became_of_them_is_left(place):
    one, other = await place.upload("a", b"1"), await place.upload("b", b"22")
    container_id = await place.create(file_ids=[one])
    await place.run(container_id, "open('a', 'w').write('changed')")
    brought = await place.containers.bring(US, container_id, [one, other, one])
    assert [file.path for file in brought] == ["a", "b"]
    assert (await place.run(container_id, "open('a').read()")).outcome.echo == "'changed'"
    await place.run(container_id, "import os; os.remove('b')")
    assert [file.path for file in await place.containers.bring(US, container_id, [one, other])] == ["a", "b"]
    await place.sandboxes.die()
    with pytest.raises(SandboxLost):
        await place.containers.bring(US, container_id, [await place.upload("c", b"333")])
    await place.containers.bring(US, container_id, [one])
    assert (await place.run(container_id, "open('a').read()")).outcome.echo == "'1'"


async def test_an_unknown_file_is_named(place):
    container_id = await place.create()
    theirs = await place.upload("a", b"x", THEM)
    for attempt, param in (
        (place.containers.create(US, ContainerSpec(name="x", file_ids=[theirs])), "file_ids"),
        (place.containers.bring(US, container_id, ["file-none"]), "file_ids"),
        (place.containers.add_file_id(US, container_id, theirs), "file_id"),
    ):
        error = await refusal(attempt)
        assert (error.status, error.param) == (400, param)
    assert place.sandboxes.held == []


async def test_a_container_of_another_is_not_there(place):
    container_id = await place.create()
    file = await place.containers.add_file(US, container_id, "a", pieces(b"x"))
    containers = place.containers
    for attempt in (
        containers.get(THEM, container_id),
        containers.require(THEM, container_id),
        containers.delete(THEM, container_id),
        containers.add_file(THEM, container_id, "a", pieces(b"y")),
        containers.add_file_id(THEM, container_id, "file-1"),
        containers.list_files(THEM, container_id, PageQuery()),
        containers.get_file(THEM, container_id, file.id),
        containers.read_file(THEM, container_id, file.id),
        containers.delete_file(THEM, container_id, file.id),
        containers.unpack(THEM, container_id, pieces(b"")),
        containers.pack(THEM, container_id),
        anext(containers.execute(THEM, container_id, "1")),
    ):
        assert (await refusal(attempt)).status == 404
    assert await place.content(container_id, file.id) == b"x"


async def test_content_can_be_given_up_half_way_and_unread(place):
    container_id = await place.create()
    file = await place.containers.add_file(US, container_id, "a", pieces(bytes(8 << 20)))
    for reads in (0, 1):
        content = await place.containers.read_file(US, container_id, file.id)
        for _ in range(reads):
            assert await anext(content)
        await content.aclose()
    place.now += 20 * 60
    await place.containers.sweep()
    assert await status(place, container_id) == "expired"
