"""Whoever waits is served in turn, tenant by tenant, and a crowd of one tenant's does not keep out another."""

from __future__ import annotations

import asyncio

import pytest

from antwort.sandbox.errors import AtCapacity
from antwort.sandbox.fair_semaphore import FairSemaphore

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Stage:
    """Work that ends when it is told to, and the order in which it began."""

    def __init__(self, places: int, queue: int) -> None:
        self.turns = FairSemaphore(places, "installations", queue=queue)
        self.begun: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}

    def start(self, name: str) -> asyncio.Task[None]:
        self.ends[name] = asyncio.Event()
        return asyncio.create_task(self._work(name))

    async def _work(self, name: str) -> None:
        async with self.turns.place(name[0]):
            self.begun.append(name)
            await self.ends[name].wait()

    async def finish(self, name: str) -> None:
        self.ends[name].set()
        await settle()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_so_many_at_once_and_the_rest_tenant_by_tenant():
    stage = Stage(2, 10)
    tasks = [stage.start(name) for name in ("a1", "a2", "a3", "a4", "a5", "b1", "c1", "b2")]
    await settle()
    assert stage.begun == ["a1", "a2"]
    for name in ("a1", "a2", "a3", "b1", "c1", "a4", "b2", "a5"):
        await stage.finish(name)
    await asyncio.gather(*tasks)
    assert stage.begun == ["a1", "a2", "a3", "b1", "c1", "a4", "b2", "a5"]


async def test_the_queue_is_bounded_and_the_last_of_a_crowd_gives_way_to_another_tenant():
    stage = Stage(1, 3)
    crowd = [stage.start(name) for name in ("a0", "a1", "a2", "a3")]
    await settle()
    with pytest.raises(AtCapacity, match="at capacity"):
        await stage.start("a4")
    guest = stage.start("b1")
    await settle()
    with pytest.raises(AtCapacity):
        await crowd[3]
    with pytest.raises(AtCapacity):  # now both have as much as is fair
        await stage.start("b2")
    for name in ("a0", "a1", "b1", "a2"):
        await stage.finish(name)
    await asyncio.gather(*crowd[:3], guest)
    assert stage.begun == ["a0", "a1", "b1", "a2"]


async def test_without_a_queue_the_answer_is_no():
    stage = Stage(1, 0)
    first = stage.start("a1")
    await settle()
    with pytest.raises(AtCapacity):
        await stage.start("a2")
    await stage.finish("a1")
    await first


async def test_giving_up_loses_no_place():
    stage = Stage(1, 5)
    first, second, third = (stage.start(name) for name in ("a1", "a2", "a3"))
    await settle()
    second.cancel()
    await settle()
    stage.ends["a1"].set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    third.cancel()  # in the very moment in which its turn comes
    await settle()
    await asyncio.gather(first, second, third, return_exceptions=True)
    last = stage.start("a4")
    await stage.finish("a4")
    await last
    assert stage.begun[-1] == "a4"
