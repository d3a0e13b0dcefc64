"""Places are handed out in order, waiting is bounded, and giving up loses nothing."""

from __future__ import annotations

import asyncio

import pytest

from antwort.sandbox.errors import AtCapacity
from antwort.sandbox.server.gate import Gate

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_without_a_queue_the_answer_is_no():
    gate = Gate(1, "runs")
    async with gate.place():
        with pytest.raises(AtCapacity, match=r"at capacity \(2/1 runs\)"):
            await gate.enter()
    assert gate.taken == 0


async def test_who_waits_longest_is_next_and_the_queue_is_bounded():
    gate, order = Gate(1, "runs", queue=2, seconds=5), []
    await gate.enter()

    async def wait(name: str) -> None:
        await gate.enter()
        order.append(name)
        gate.leave()

    waiting = [asyncio.create_task(wait(name)) for name in ("first", "second")]
    await asyncio.sleep(0)
    with pytest.raises(AtCapacity):
        await gate.enter()
    gate.leave()
    await asyncio.gather(*waiting)
    assert (order, gate.taken) == (["first", "second"], 0)


async def test_whoever_brings_a_crowd_does_not_keep_others_waiting():
    gate, order = Gate(1, "runs", queue=9, seconds=5), []
    await gate.enter("crowd")

    async def wait(tenant: str) -> None:
        async with gate.place(tenant):
            order.append(tenant)

    waiting = [asyncio.create_task(wait(tenant)) for tenant in ("crowd", "crowd", "crowd", "one", "other")]
    await asyncio.sleep(0)
    gate.leave()
    await asyncio.gather(*waiting)
    assert (order, gate.taken) == (["crowd", "one", "other", "crowd", "crowd"], 0)


async def test_giving_up_gives_the_place_back():
    gate = Gate(1, "runs", queue=5, seconds=0.05)
    await gate.enter()
    with pytest.raises(AtCapacity):
        await gate.enter()
    cancelled = asyncio.create_task(gate.enter())
    await asyncio.sleep(0.01)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    gate.leave()
    await gate.enter()
    assert gate.taken == 1
