"""Work in a thread goes on to its end, and whoever gave up waits for that."""

from __future__ import annotations

import asyncio
import threading

import pytest

from antwort.sandbox.threads import DedicatedThreads

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_it_answers_and_hands_on_errors():
    workers = DedicatedThreads(1, "test")
    assert await workers.run(lambda: threading.current_thread().name.startswith("test"))
    with pytest.raises(ZeroDivisionError):
        await workers.run(lambda: 1 // 0)
    workers.close()


async def test_who_is_cancelled_waits_for_the_end():
    workers, gone_on, done = DedicatedThreads(1, "test"), threading.Event(), []

    def work() -> None:
        gone_on.wait(10)
        done.append(1)

    task = asyncio.create_task(workers.run(work))
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.sleep(0.05)
    assert not task.done()
    gone_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == [1]
    workers.close()
