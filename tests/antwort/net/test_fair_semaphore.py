"""Fair semaphore: order across tenants, bounded queue, rejection in the longest queue, time-out and cancellation."""

from __future__ import annotations

import asyncio

import pytest

from antwort.net.errors import QueueFull
from antwort.net.fair_semaphore import FairSemaphore

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Workers:
    """Tasks that hold a slot until `finish`, and the order in which they started. A name begins with its tenant."""

    def __init__(self, slots: int, max_queue: int) -> None:
        self.semaphore = FairSemaphore(slots, "installations", max_queue=max_queue)
        self.started: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}

    def start(self, name: str) -> asyncio.Task[None]:
        self.ends[name] = asyncio.Event()
        return asyncio.create_task(self._work(name))

    async def _work(self, name: str) -> None:
        async with self.semaphore.slot(name[0]):
            self.started.append(name)
            await self.ends[name].wait()

    async def finish(self, name: str) -> None:
        self.ends[name].set()
        await run_pending_tasks()


async def run_pending_tasks() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_slots_are_granted_round_robin_across_tenants():
    workers = Workers(2, 10)
    tasks = [workers.start(name) for name in ("a1", "a2", "a3", "a4", "a5", "b1", "c1", "b2")]
    await run_pending_tasks()
    assert workers.started == ["a1", "a2"]
    for name in ("a1", "a2", "a3", "b1", "c1", "a4", "b2", "a5"):
        await workers.finish(name)
    await asyncio.gather(*tasks)
    assert workers.started == ["a1", "a2", "a3", "b1", "c1", "a4", "b2", "a5"]
    assert workers.semaphore.in_use == 0


async def test_a_full_queue_rejects_the_last_request_of_the_longest_queue():
    workers = Workers(1, 3)
    tasks = [workers.start(name) for name in ("a0", "a1", "a2", "a3")]
    await run_pending_tasks()
    with pytest.raises(QueueFull, match=r"at capacity \(2/1 installations, queue of 3\)"):
        await workers.start("a4")
    other = workers.start("b1")
    await run_pending_tasks()
    with pytest.raises(QueueFull):
        await tasks[3]
    with pytest.raises(QueueFull):  # both tenants have their fair share now
        await workers.start("b2")
    for name in ("a0", "a1", "b1", "a2"):
        await workers.finish(name)
    await asyncio.gather(*tasks[:3], other)
    assert workers.started == ["a0", "a1", "b1", "a2"]


async def test_without_a_queue_requests_are_rejected_at_once():
    semaphore = FairSemaphore(1, "runs", retry_after=5)
    async with semaphore.slot():
        with pytest.raises(QueueFull, match=r"^at capacity \(2/1 runs\)$") as caught:
            await semaphore.acquire()
    assert (semaphore.in_use, caught.value.retry_after) == (0, 5)


async def test_one_tenant_is_served_in_order_of_arrival():
    semaphore, order = FairSemaphore(1, "runs", max_queue=2, wait_timeout=5), []
    await semaphore.acquire()

    async def wait(name: str) -> None:
        await semaphore.acquire()
        order.append(name)
        semaphore.release()

    waiting = [asyncio.create_task(wait(name)) for name in ("first", "second")]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull):
        await semaphore.acquire()
    semaphore.release()
    await asyncio.gather(*waiting)
    assert (order, semaphore.in_use) == (["first", "second"], 0)


async def test_cancellation_loses_no_slot():
    workers = Workers(1, 5)
    first, second, third = (workers.start(name) for name in ("a1", "a2", "a3"))
    await run_pending_tasks()
    second.cancel()
    await run_pending_tasks()
    workers.ends["a1"].set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    third.cancel()  # at the moment at which its slot is granted
    await run_pending_tasks()
    await asyncio.gather(first, second, third, return_exceptions=True)
    last = workers.start("a4")
    await workers.finish("a4")
    await last
    assert workers.started[-1] == "a4"
    assert workers.semaphore.in_use == 0


async def test_a_timed_out_wait_is_rejected_and_loses_no_slot():
    semaphore = FairSemaphore(1, "runs", max_queue=5, wait_timeout=0.05)
    await semaphore.acquire()
    with pytest.raises(QueueFull):
        await semaphore.acquire()
    cancelled = asyncio.create_task(semaphore.acquire())
    await asyncio.sleep(0.01)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    semaphore.release()
    await semaphore.acquire()
    assert semaphore.in_use == 1


async def test_a_rejected_request_that_is_cancelled_at_the_same_moment_leaves_no_warning(recwarn):
    workers = Workers(1, 3)
    tasks = [workers.start(name) for name in ("a0", "a1", "a2", "a3")]
    await run_pending_tasks()
    other = workers.start("b1")
    await asyncio.sleep(0)
    tasks[3].cancel()
    await run_pending_tasks()
    for name in ("a0", "a1", "b1", "a2"):
        await workers.finish(name)
    await asyncio.gather(*tasks, other, return_exceptions=True)
    assert (workers.semaphore.in_use, list(recwarn)) == (0, [])
