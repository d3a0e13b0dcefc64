from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antwort.api.events import OutputTextDelta, to_sse
from antwort.engine.event_buffer import MAX_WAITING, EventBuffer
from antwort.engine.stores import Owner, ResponseTakenOver, StoredStep, StoreFault

pytestmark = pytest.mark.anyio

US = Owner("us", "key")


@pytest.fixture
def anyio_backend():
    return "asyncio"


class SlowStore:
    """A store of events that waits for `open`, and then refuses so many batches."""

    def __init__(self, refusals: int = 0) -> None:
        self.stored: list[tuple[int, bytes]] = []
        self.steps: list[StoredStep] = []
        self.batches: list[int] = []
        self.open = asyncio.Event()
        self.refusals = refusals

    async def append_events(self, owner, response_id, events, steps=()) -> None:
        await self.open.wait()
        if self.refusals:
            self.refusals -= 1
            raise StoreFault("The store failed: the disk is full.")
        self.stored += events
        self.steps += steps
        self.batches.append(len(events))


def event(number: int) -> OutputTextDelta:
    return OutputTextDelta(item_id="msg_1", output_index=0, content_index=0, delta="x", sequence_number=number)


def frames(numbers) -> list[tuple[int, bytes]]:
    return [(number, to_sse(event(number))) for number in numbers]


def started(store) -> tuple[EventBuffer, asyncio.Queue[int]]:
    reported: asyncio.Queue[int] = asyncio.Queue()
    buffer = EventBuffer(store, US, "resp_1")
    buffer.start(reported.put, lambda: None)
    return buffer, reported


async def wait_for_stored(reported: asyncio.Queue[int], number: int) -> None:
    """Wait until this sequence number is stored; numbers are reported in ascending order."""
    async with asyncio.timeout(10):
        last = -1
        while last < number:
            before, last = last, await reported.get()
            assert last > before


async def test_events_are_stored_in_order_and_reported():
    store = SlowStore()
    store.open.set()
    buffer, reported = started(store)
    for number in range(5):
        await buffer.add(event(number))
    await wait_for_stored(reported, 4)

    assert await buffer.close() == []
    assert store.stored == frames(range(5))


async def test_events_that_arrive_while_the_store_is_busy_are_one_batch():
    store = SlowStore()
    buffer, reported = started(store)
    for number in range(10):
        await buffer.add(event(number))
        await asyncio.sleep(0)
    store.open.set()
    await wait_for_stored(reported, 9)
    await buffer.close()

    assert store.stored == frames(range(10))
    assert len(store.batches) == 2


async def test_add_waits_while_the_buffer_is_full():
    store = SlowStore()
    buffer, _ = started(store)
    for number in range(MAX_WAITING):
        await buffer.add(event(number))
    one_more = asyncio.create_task(buffer.add(event(MAX_WAITING)))
    await asyncio.sleep(0.01)
    assert not one_more.done()
    store.open.set()
    await asyncio.wait_for(one_more, 10)
    await buffer.close()


async def test_a_refused_batch_is_retried():
    store = SlowStore(refusals=1)
    store.open.set()
    buffer, reported = started(store)
    await buffer.add(event(0))
    await wait_for_stored(reported, 0)
    await buffer.close()

    assert store.stored == frames([0])


async def test_close_returns_the_unstored_and_the_final_events():
    store = SlowStore(refusals=1000)
    store.open.set()
    buffer, reported = started(store)
    for number in range(3):
        await buffer.add(event(number))

    assert await asyncio.wait_for(buffer.close(event(3)), 10) == frames(range(4))
    assert store.stored == []
    assert reported.empty()


async def test_a_cancelled_add_has_buffered_its_event():
    store = SlowStore()
    buffer, _ = started(store)
    for number in range(MAX_WAITING):
        await buffer.add(event(number))
    adding = asyncio.create_task(buffer.add(event(MAX_WAITING)))
    await asyncio.sleep(0.01)
    adding.cancel()
    await asyncio.wait([adding])
    store.open.set()
    rest = await buffer.close()

    assert [*store.stored, *rest] == frames(range(MAX_WAITING + 1))


async def test_a_batch_of_a_response_that_was_taken_over_is_not_retried():
    class TakenOver(SlowStore):
        async def append_events(self, owner, response_id, events, steps=()) -> None:
            self.batches.append(len(events))
            raise ResponseTakenOver("taken over")

    store: Any = TakenOver()
    lost = asyncio.Event()
    buffer = EventBuffer(store, US, "resp_1")
    buffer.start(asyncio.Queue[int]().put, lost.set)
    await buffer.add(event(0))
    async with asyncio.timeout(10):
        await lost.wait()
        for number in range(1, 2 * MAX_WAITING):  # never waits for a write
            await buffer.add(event(number))
        await buffer.close()
    assert store.batches == [1]


def step(number: int) -> StoredStep:
    return StoredStep(number, 10 * number, b"{}")


async def test_flush_waits_until_events_and_steps_are_stored():
    store = SlowStore(refusals=1)
    buffer, _ = started(store)
    await buffer.add(event(0))
    buffer.note(step(0))
    flushing = asyncio.create_task(buffer.flush())
    await asyncio.sleep(0.01)
    assert not flushing.done()
    store.open.set()
    await asyncio.wait_for(flushing, 10)

    assert (store.stored, store.steps) == (frames([0]), [step(0)])
    await buffer.close()


async def test_flush_fails_where_the_store_refuses_for_too_long():
    store = SlowStore(refusals=1000)
    store.open.set()
    buffer, _ = started(store)
    buffer.flush_timeout = 0.05
    buffer.note(step(0))
    with pytest.raises(StoreFault, match="too long"):
        await buffer.flush()
    assert await buffer.close() == []


async def test_flush_fails_when_the_writer_has_failed():
    class Broken(SlowStore):
        async def append_events(self, owner, response_id, events, steps=()) -> None:
            raise RuntimeError("a defect")

    buffer, _ = started(Broken())
    buffer.note(step(0))
    with pytest.raises(StoreFault):
        await asyncio.wait_for(buffer.flush(), 10)
    await asyncio.wait_for(buffer.add(event(0)), 10)
    assert await buffer.close() == frames([0])


async def test_a_step_is_stored_in_one_batch_with_the_held_events_and_the_next_one():
    store = SlowStore()
    store.open.set()
    buffer, reported = started(store)
    await buffer.add(event(0))
    await wait_for_stored(reported, 0)
    buffer.is_holding = True
    await buffer.add(event(1))
    await asyncio.sleep(0.01)
    assert store.stored == frames([0])
    buffer.note(step(0))
    await buffer.add(event(2))
    await wait_for_stored(reported, 2)

    assert (store.batches, store.steps) == ([1, 2], [step(0)])
    assert await buffer.close() == []


async def test_close_returns_held_events_without_steps():
    buffer, _ = started(SlowStore())
    buffer.is_holding = True
    await buffer.add(event(0))
    buffer.note(step(0))

    assert await buffer.close(event(1)) == frames([0, 1])
