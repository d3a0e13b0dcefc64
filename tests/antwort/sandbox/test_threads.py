"""DedicatedThreads: results, errors, and cancellation waits for the work to end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from antwort.sandbox.threads import DedicatedThreads

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_results_and_errors_are_returned():
    threads = DedicatedThreads(1, "test")
    assert await threads.run(lambda: threading.current_thread().name.startswith("test"))
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 // 0)
    threads.close()


async def test_a_cancelled_caller_waits_for_the_work():
    threads, proceed, done = DedicatedThreads(1, "test"), threading.Event(), []

    def work() -> None:
        proceed.wait(10)
        done.append(1)

    task = asyncio.create_task(threads.run(work))
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.sleep(0.05)
    assert not task.done()
    proceed.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == [1]
    threads.close()
