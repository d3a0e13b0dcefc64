from __future__ import annotations

import asyncio

import pytest

from antwort.api.events import OutputTextDelta, to_sse
from antwort.engine.event_buffer import BATCH, EventBuffer
from antwort.engine.stores import Owner, StoreFault

pytestmark = pytest.mark.anyio

US = Owner("us", "key")


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Shelf:
    """A store of events that takes its time, and refuses as often as it is told to."""

    def __init__(self, refusals: int = 0) -> None:
        self.kept: list[tuple[int, bytes]] = []
        self.batches: list[int] = []
        self.open = asyncio.Event()
        self.refusals = refusals

    async def append_events(self, owner, response_id, events) -> None:
        await self.open.wait()
        if self.refusals:
            self.refusals -= 1
            raise StoreFault("The store failed: the disk is full.")
        self.kept += events
        self.batches.append(len(events))


def event(number: int) -> OutputTextDelta:
    return OutputTextDelta(item_id="msg_1", output_index=0, content_index=0, delta="x", sequence_number=number)


def frames(numbers) -> list[tuple[int, bytes]]:
    return [(number, to_sse(event(number))) for number in numbers]


def begun(shelf) -> tuple[EventBuffer, asyncio.Queue[int]]:
    told: asyncio.Queue[int] = asyncio.Queue()
    journal = EventBuffer(shelf, US, "resp_1")
    journal.begin(told.put)
    return journal, told


async def told_of(told: asyncio.Queue[int], number: int) -> None:
    """Wait until this one is in the store; those before it have to be told before."""
    async with asyncio.timeout(10):
        last = -1
        while last < number:
            before, last = last, await told.get()
            assert last > before


async def test_events_are_kept_in_order_and_told_when_they_are():
    shelf = Shelf()
    shelf.open.set()
    journal, told = begun(shelf)
    for number in range(5):
        await journal.add(event(number))
    await told_of(told, 4)

    assert await journal.close() == []
    assert shelf.kept == frames(range(5))


async def test_what_comes_while_the_store_is_busy_is_kept_together():
    shelf = Shelf()
    journal, told = begun(shelf)
    for number in range(10):
        await journal.add(event(number))
        await asyncio.sleep(0)
    shelf.open.set()
    await told_of(told, 9)
    await journal.close()

    assert shelf.kept == frames(range(10))
    assert len(shelf.batches) == 2


async def test_whoever_adds_waits_while_a_batch_waits():
    shelf = Shelf()
    journal, _ = begun(shelf)
    for number in range(BATCH):
        await journal.add(event(number))
    one_more = asyncio.create_task(journal.add(event(BATCH)))
    await asyncio.sleep(0.01)
    assert not one_more.done()
    shelf.open.set()
    await asyncio.wait_for(one_more, 10)
    await journal.close()


async def test_a_refused_batch_is_tried_again():
    shelf = Shelf(refusals=1)
    shelf.open.set()
    journal, told = begun(shelf)
    await journal.add(event(0))
    await told_of(told, 0)
    await journal.close()

    assert shelf.kept == frames([0])


async def test_what_is_not_kept_at_the_end_is_handed_over_with_the_last_events():
    shelf = Shelf(refusals=1000)
    shelf.open.set()
    journal, told = begun(shelf)
    for number in range(3):
        await journal.add(event(number))

    assert await asyncio.wait_for(journal.close(event(3)), 10) == frames(range(4))
    assert shelf.kept == []
    assert told.empty()


async def test_one_who_was_cancelled_while_waiting_has_added_all_the_same():
    shelf = Shelf()
    journal, _ = begun(shelf)
    for number in range(BATCH):
        await journal.add(event(number))
    adding = asyncio.create_task(journal.add(event(BATCH)))
    await asyncio.sleep(0.01)
    adding.cancel()
    await asyncio.wait([adding])
    shelf.open.set()
    rest = await journal.close()

    assert [*shelf.kept, *rest] == frames(range(BATCH + 1))
