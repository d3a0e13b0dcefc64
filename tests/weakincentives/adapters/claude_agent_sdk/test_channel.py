from __future__ import annotations

import asyncio
import threading

import pytest
from waiting import wait_until, wait_until_async

from weakincentives.adapters.claude_agent_sdk.channel import DeadlinePassed, EventChannel, running
from weakincentives.deadlines import Deadline


def test_events_are_handled_in_the_thread_of_the_caller():
    answers: list[int] = []

    async def main(channel: EventChannel[int]) -> None:
        channel.tell(1)
        answers.append(await channel.ask(2))

    seen: list[tuple[int, threading.Thread]] = []
    with running(main, stop_timeout=10) as (channel, thread):
        for asked in channel.receive(None):
            seen.append((asked.event, threading.current_thread()))
            asked.answer.set_result(asked.event * 10)
    assert seen == [(1, threading.current_thread()), (2, threading.current_thread())]
    assert answers == [20]
    assert thread.error is None


def test_error_of_the_coroutine_ends_the_events():
    async def main(channel: EventChannel[int]) -> None:
        raise RuntimeError("broken")

    with running(main, stop_timeout=10) as (channel, thread):
        assert list(channel.receive(None)) == []
    assert str(thread.error) == "broken"


def test_deadline_passes_while_nothing_arrives():
    async def main(channel: EventChannel[int]) -> None:
        await asyncio.Event().wait()

    with running(main, stop_timeout=10) as (channel, thread), pytest.raises(DeadlinePassed):
        list(channel.receive(Deadline.after(0.05)))
    assert thread.stop(0)


def test_cancelled_question_is_not_handled_and_a_running_one_is_marked():
    received, started = threading.Event(), threading.Event()

    async def main(channel: EventChannel[str]) -> None:
        early = asyncio.ensure_future(channel.ask("early"))
        await asyncio.sleep(0)
        early.cancel()
        await asyncio.sleep(0)
        received.set()
        late = asyncio.ensure_future(channel.ask("late"))
        await wait_until_async(started.is_set)
        late.cancel()

    events: list[str] = []
    with running(main, stop_timeout=10) as (channel, thread):
        received.wait(10)
        for asked in channel.receive(None):
            started.set()
            wait_until(lambda asked=asked: asked.is_cancelled)
            asked.answer.set_result(None)
            events.append(asked.event)
    assert events == ["late"]
    assert thread.error is None


def test_stop_before_the_loop_runs_starts_nothing():
    ran: list[object] = []

    async def main(channel: EventChannel[int]) -> None:
        ran.append(channel)

    with running(main, stop_timeout=10) as (_, thread):
        assert thread.stop(10)
    assert len(ran) <= 1
