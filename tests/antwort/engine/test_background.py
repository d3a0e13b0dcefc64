from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from antwort.api.requests import CreateResponse
from antwort.api.sse import opened
from antwort.engine.background import Background
from antwort.engine.engine import Engine
from antwort.engine.ports import ChosenModel, Owner
from antwort.models import Scripted, parse_script
from antwort.models.registry import ModelRegistry
from antwort.storage import open_store
from antwort.tools import Registry

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
async def stage(tmp_path):
    store = await open_store(f"sqlite:///{tmp_path}/antwort.db", tmp_path / "blobs")
    model = ChosenModel("m", Scripted(parse_script(SCRIPT)), "m")
    engine = Engine(ModelRegistry({"m": model}, default="m", default_for_unknown=False), Registry(), store)
    background = Background(store)
    yield engine, background
    await background.aclose()
    await engine.late.aclose()
    await store.aclose()


async def launched(stage, text):
    engine, background = stage
    work = await engine.start(US, CreateResponse(input=text, background=True))
    background.launch(work)
    return work.response.id


async def followed(background, identifier, after=-1):
    async with contextlib.aclosing(background.follow(US, identifier, after)) as frames:
        return [json.loads(opened(frame)[1]) async for frame in frames]


async def said_something(background, identifier):
    async with contextlib.aclosing(background.follow(US, identifier, -1)) as frames:
        async for frame in frames:
            if b".delta" in frame:
                return


def check_numbers(events):
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


async def test_whoever_follows_gets_every_event_in_order(stage):
    identifier = await launched(stage, "long")
    early, late = await asyncio.gather(*[followed(stage[1], identifier) for _ in range(2)])
    after = await followed(stage[1], identifier, early[9]["sequence_number"])

    check_numbers(early)
    assert early == late
    assert after == early[10:]
    assert early[-1]["type"] == "response.completed"


async def test_a_cancelled_response_ends_every_stream_with_what_became_of_it(stage):
    engine, background = stage
    identifier = await launched(stage, "forever")
    follower = asyncio.create_task(followed(background, identifier))
    await said_something(background, identifier)
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


async def test_cancelled_before_it_has_begun_it_still_has_a_beginning_and_an_end(stage):
    engine, background = stage
    identifier = await launched(stage, "forever")
    assert await background.cancel(identifier)
    events = await followed(background, identifier)

    check_numbers(events)
    assert (events[0]["type"], events[-1]["type"]) == ("response.created", "response.incomplete")
    assert events[-1]["response"]["status"] == "cancelled"
    assert await engine.store.unfinished() == []


async def test_many_who_cancel_at_once_harm_nothing(stage):
    engine, background = stage
    identifier = await launched(stage, "forever")
    follower = asyncio.create_task(followed(background, identifier))
    told = await asyncio.gather(*[background.cancel(identifier) for _ in range(20)])
    events = await asyncio.wait_for(follower, 10)

    assert all(told)
    assert not await background.cancel(identifier)
    check_numbers(events)
    assert [event["type"] for event in events].count("response.incomplete") == 1
    assert await engine.store.unfinished() == []


@pytest.mark.parametrize("moment", range(0, 60, 3))
async def test_cancelled_at_any_moment_the_stream_and_the_store_agree(stage, moment):
    engine, background = stage
    identifier = await launched(stage, "long")
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


async def test_stopped_it_is_left_for_the_next_start(stage):
    engine, background = stage
    identifier = await launched(stage, "forever")
    events, spoken = [], asyncio.Event()

    async def follow():
        async with contextlib.aclosing(background.follow(US, identifier, -1)) as frames:
            async for frame in frames:
                events.append(json.loads(opened(frame)[1]))
                if b".delta" in frame:
                    spoken.set()

    follower = asyncio.create_task(follow())
    await asyncio.wait_for(spoken.wait(), 10)
    await background.aclose()
    await asyncio.wait_for(follower, 10)

    assert events[-1]["type"] == "response.output_text.delta"
    assert [stored.response.id for _, stored in await engine.store.unfinished()] == [identifier]
