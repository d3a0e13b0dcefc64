from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from fixtures_sealing import new_sealer

from antwort.api.requests import CreateResponse
from antwort.engine.background import Background
from antwort.engine.engine import Engine
from antwort.engine.ports import ChosenModel
from antwort.engine.stores import Owner
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
    assert await engine.store.unfinished_responses() == []


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
    assert await engine.store.unfinished_responses() == []


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
    assert [stored.response.id for _, stored in await engine.store.unfinished_responses()] == [identifier]
