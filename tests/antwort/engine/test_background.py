from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from fixtures_sealing import new_sealer
from recovery import recovered
from unfinished import unfinished_ids
from waiting import wait_until_async

from antwort.api.errors import ApiError
from antwort.api.requests import CreateResponse
from antwort.engine import background as background_module
from antwort.engine.background import Background
from antwort.engine.engine import Engine
from antwort.engine.ports import ChosenModel
from antwort.engine.replicas.takeover import Takeover
from antwort.engine.stores import Owner, StoreFault
from antwort.models import Scripted, parse_script
from antwort.models.registry import ModelRegistry
from antwort.net.sse import decode_frame
from antwort.storage import open_store
from antwort.tools import ToolRegistry

pytestmark = pytest.mark.anyio

US = Owner("us", "key")
SCRIPT = """
fragment: 1
answers:
  - {when: {text: silent}, reply: [{delay: 600}]}
  - {when: {text: forever}, reply: [{text: begun}, {delay: 600}]}
  - {when: {text: long}, reply: [{text: "0123456789012345678901234567890123456789012345678901234567890123456789"}]}
  - {reply: [{text: hello}]}
"""


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def server(tmp_path):
    store = await open_store(f"sqlite:///{tmp_path}/antwort.db", tmp_path / "blobs")
    model = ChosenModel("m", Scripted(parse_script(SCRIPT)), "m")
    engine = Engine(
        ModelRegistry({"m": model}, default="m", default_for_unknown=False), ToolRegistry(), store, new_sealer()
    )
    background = Background(store)
    yield engine, background
    await background.aclose()
    await engine.retries.aclose()
    await store.aclose()


async def launched(server, text):
    engine, background = server
    run = await engine.start(US, CreateResponse(input=text, background=True))
    background.launch(run)
    return run.response.id


async def followed(background, identifier, after=-1):
    async with contextlib.aclosing(background.follow(US, identifier, after)) as frames:
        return [json.loads(decode_frame(frame)[1]) async for frame in frames]


async def wait_for_delta(background, identifier):
    async with contextlib.aclosing(background.follow(US, identifier, -1)) as frames:
        async for frame in frames:
            if b".delta" in frame:
                return


def check_numbers(events):
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


async def test_followers_receive_every_event_in_order(server):
    identifier = await launched(server, "long")
    early, late = await asyncio.gather(*[followed(server[1], identifier) for _ in range(2)])
    after = await followed(server[1], identifier, early[9]["sequence_number"])

    check_numbers(early)
    assert early == late
    assert after == early[10:]
    assert early[-1]["type"] == "response.completed"


async def test_followers_of_a_cancelled_response_receive_its_last_events(server):
    engine, background = server
    identifier = await launched(server, "forever")
    follower = asyncio.create_task(followed(background, identifier))
    await wait_for_delta(background, identifier)
    assert await background.cancel(identifier)
    events = await asyncio.wait_for(follower, 10)

    check_numbers(events)
    assert [event["type"] for event in events[-4:]] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert events[-1]["response"]["status"] == "cancelled"
    assert await followed(background, identifier) == events
    stored = await engine.store.get_response(US, identifier)
    assert stored is not None
    assert (stored.response.status, stored.response.output) == ("cancelled", events[-1]["response"]["output"])


async def test_a_response_cancelled_before_it_started_has_a_first_and_a_last_event(server):
    engine, background = server
    identifier = await launched(server, "forever")
    assert await background.cancel(identifier)
    events = await followed(background, identifier)

    check_numbers(events)
    assert (events[0]["type"], events[-1]["type"]) == ("response.created", "response.incomplete")
    assert events[-1]["response"]["status"] == "cancelled"
    assert await unfinished_ids(engine.store) == []


async def test_concurrent_cancellations_end_the_response_once(server):
    engine, background = server
    identifier = await launched(server, "forever")
    follower = asyncio.create_task(followed(background, identifier))
    results = await asyncio.gather(*[background.cancel(identifier) for _ in range(20)])
    events = await asyncio.wait_for(follower, 10)

    assert all(results)
    assert not await background.cancel(identifier)
    check_numbers(events)
    assert [event["type"] for event in events].count("response.incomplete") == 1
    assert await unfinished_ids(engine.store) == []


@pytest.mark.parametrize("moment", range(0, 60, 3))
async def test_stream_and_store_agree_after_a_cancellation_at_any_moment(server, moment):
    engine, background = server
    identifier = await launched(server, "long")
    for _ in range(moment):
        await asyncio.sleep(0)
    await background.cancel(identifier)
    events = await followed(background, identifier)
    stored = await engine.store.get_response(US, identifier)

    assert stored is not None
    check_numbers(events)
    assert stored.response.ended
    assert events[-1]["response"]["status"] == stored.response.status
    assert events[-1]["response"]["output"] == stored.response.output


async def test_aclose_leaves_a_response_unfinished_for_the_next_start(server):
    engine, background = server
    identifier = await launched(server, "forever")
    events, has_delta = [], asyncio.Event()

    async def follow():
        async with contextlib.aclosing(background.follow(US, identifier, -1)) as frames:
            async for frame in frames:
                events.append(json.loads(decode_frame(frame)[1]))
                if b".delta" in frame:
                    has_delta.set()

    follower = asyncio.create_task(follow())
    await asyncio.wait_for(has_delta.wait(), 10)
    await background.aclose()
    await asyncio.wait_for(follower, 10)

    assert events[-1]["type"] == "response.output_text.delta"
    assert await unfinished_ids(engine.store) == [identifier]


async def test_a_response_that_this_process_still_works_on_is_not_resumed_beside_it(server):
    """The process was taken for dead, and the one that took over has ended before this one has noticed."""
    engine, background = server
    launched_runs = []

    async def launch(run):
        launched_runs.append(run)

    takeover = Takeover(engine, background, launch)
    identifier = await launched(server, "forever")
    await wait_for_delta(background, identifier)
    await engine.store._database.write_all_tenants(
        lambda rows: rows.execute("UPDATE responses SET replica = 'rep_ended'")
    )
    await takeover.recover()
    assert launched_runs == []
    background.abandon(identifier)
    await wait_until_async(lambda: not background.running)
    await takeover.recover()
    assert [run.response.id for run in launched_runs] == [identifier]


async def test_a_cancellation_by_another_replica_does_not_wait_for_a_take_over(server):
    """To prepare what is taken over may last long: an upstream that is asked for its abilities may not answer."""
    engine, background = server

    async def launch(run):
        background.launch(run)

    identifier = await launched(server, "forever")
    await wait_for_delta(background, identifier)
    await engine.store.request_cancel(US, identifier)
    async with background.launching:
        running = asyncio.create_task(Takeover(engine, background, launch).run())
        try:
            await wait_until_async(lambda: not background.running)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    assert (await engine.store.get_response(US, identifier)).response.status == "cancelled"


async def test_a_cancellation_is_not_replaced_by_an_end_that_was_refused_before(server):
    engine, background = server
    run = await engine.start(US, CreateResponse(input="long", background=True))
    write, is_refused = run.store.finish_response, True

    async def refusing(owner, response, **options):
        if response.status == "completed" and is_refused:
            raise StoreFault("The store failed: it is away.")
        await write(owner, response, **options)

    engine.store.finish_response = refusing
    engine.retries.first_wait = 0.01
    background.launch(run)
    await wait_until_async(lambda: not background.running)
    await background.end(US, run.response.id)
    is_refused = False
    await wait_until_async(lambda: not engine.retries._tasks)
    events = await followed(background, run.response.id)
    assert (await engine.store.get_response(US, run.response.id)).response.status == "cancelled"
    assert [event["type"] for event in events if event["type"].rpartition(".")[2] in ("completed", "incomplete")] == [
        "response.incomplete"
    ]


async def test_a_continued_response_whose_model_has_not_answered_can_be_cancelled(server):
    engine, background = server
    identifier = await launched(server, "silent")
    async with contextlib.aclosing(background.follow(US, identifier, -1)) as frames:
        async for frame in frames:
            if b"response.in_progress" in frame:
                break
    await background.aclose()
    await engine.store._database.write_all_tenants(
        lambda rows: rows.execute("UPDATE responses SET replica = 'rep_ended'")
    )
    again = Background(engine.store)
    [run] = await recovered(engine)
    again.launch(run)
    assert await asyncio.wait_for(again.cancel(identifier), 10)
    events = await followed(again, identifier)

    check_numbers(events)
    assert [event["type"] for event in events] == [
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.incomplete",
    ]
    assert events[-1]["response"]["status"] == "cancelled"


async def test_a_cancellation_does_not_wait_for_a_take_over_for_ever(server, monkeypatch):
    engine, background = server
    run = await engine.start(US, CreateResponse(input="long", background=True))
    monkeypatch.setattr(background_module, "_CANCEL_TIMEOUT", 0.05)
    async with background.launching:
        with pytest.raises(ApiError) as refused:
            await asyncio.wait_for(background.end(US, run.response.id), 10)
    assert (refused.value.status, refused.value.retry_after) == (503, 2)
    monkeypatch.undo()
    await background.end(US, run.response.id)
    assert await unfinished_ids(engine.store) == []
