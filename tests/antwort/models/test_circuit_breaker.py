from __future__ import annotations

import asyncio
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.engine.ports import ModelFault
from antwort.models.circuit_breaker import Attempt, CircuitBreaker, CircuitBreakers, CircuitOpen

pytestmark = pytest.mark.anyio

BUSY = ModelFault("busy", code="rate_limit_exceeded", status=429, retry_after=2, retryable=True)
BROKEN = ModelFault("broken", retryable=True)
WRONG = ModelFault("wrong", code="invalid_prompt", status=400)


class FakeClock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def end(attempt: Attempt, fault: BaseException | None = None) -> None:
    attempt.__exit__(None if fault is None else type(fault), fault, None)


async def fail(breaker: CircuitBreaker, fault: ModelFault = BROKEN) -> None:
    end(await breaker.admit(), fault)


async def succeed(breaker: CircuitBreaker) -> None:
    with await breaker.admit() as attempt:
        attempt.record_success()


async def seconds_until_admitted(breaker: CircuitBreaker) -> float:
    try:
        with await breaker.admit():
            return 0
    except CircuitOpen as fault:
        return fault.retry_after or 0


async def open_breaker(clock, threshold=3) -> CircuitBreaker:
    breaker = CircuitBreaker(threshold=threshold, pause=10.0, clock=clock)
    for _ in range(threshold):
        await fail(breaker)
    return breaker


async def start_waiting(breaker: CircuitBreaker, count: int) -> list[asyncio.Task[Attempt]]:
    tasks = [asyncio.create_task(breaker.admit()) for _ in range(count)]
    await asyncio.wait(tasks, timeout=0)
    return tasks


# ── one breaker ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_consecutive_failures_open_the_breaker():
    clock = FakeClock()
    breaker = await open_breaker(clock)
    clock.now = 4.0

    assert breaker.is_open
    assert await seconds_until_admitted(breaker) == 6


async def test_failures_between_successes_do_not_open_the_breaker():
    breaker = CircuitBreaker(threshold=2, clock=FakeClock())
    for _ in range(5):
        await fail(breaker)
        await succeed(breaker)

    assert not breaker.is_open


@pytest.mark.parametrize("fault", [BUSY, WRONG])
async def test_a_4xx_answer_counts_as_success(fault):
    breaker = CircuitBreaker(threshold=2, clock=FakeClock())
    await fail(breaker)
    await fail(breaker, fault)
    await fail(breaker)

    assert not breaker.is_open


async def test_a_successful_probe_closes_the_breaker_and_resets_the_count():
    clock = FakeClock()
    breaker = await open_breaker(clock)
    clock.now = 10.0
    await succeed(breaker)
    await fail(breaker)

    assert not breaker.is_open


async def test_a_failed_probe_restarts_the_pause():
    clock = FakeClock()
    breaker = await open_breaker(clock)
    clock.now = 10.0
    await fail(breaker)

    assert await seconds_until_admitted(breaker) == 10


async def test_a_late_failure_does_not_restart_the_pause():
    clock = FakeClock()
    breaker = CircuitBreaker(threshold=1, clock=clock)
    late = await breaker.admit()
    await fail(breaker)
    clock.now = 4.0
    end(late, BROKEN)

    assert await seconds_until_admitted(breaker) == 6


async def test_a_late_success_closes_the_breaker_and_admits_those_that_wait():
    clock = FakeClock()
    breaker = CircuitBreaker(threshold=1, clock=clock)
    late = await breaker.admit()
    await fail(breaker)
    clock.now = 10.0
    probe = await breaker.admit()
    waiting = await start_waiting(breaker, 2)
    late.record_success()

    assert not breaker.is_open
    await asyncio.gather(*waiting)
    end(probe)


async def test_the_failure_of_a_probe_whose_breaker_has_closed_counts_once():
    clock = FakeClock()
    breaker = await open_breaker(clock)
    clock.now = 10.0
    probe = await breaker.admit()
    probe.record_start()
    await succeed(breaker)
    end(probe, BROKEN)

    assert not breaker.is_open


# ── requests that wait for a probe ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("outcome", ["record_start", "record_success"])
async def test_a_successful_probe_admits_all_that_wait(outcome):
    clock = FakeClock()
    breaker = await open_breaker(clock)
    clock.now = 10.0
    probe = await breaker.admit()
    waiting = await start_waiting(breaker, 3)
    assert not any(task.done() for task in waiting)
    getattr(probe, outcome)()

    assert all(isinstance(admitted, Attempt) for admitted in await asyncio.gather(*waiting))


async def test_a_failed_probe_rejects_all_that_wait_with_the_new_pause():
    clock = FakeClock()
    breaker = await open_breaker(clock)
    clock.now = 10.0
    probe = await breaker.admit()
    waiting = await start_waiting(breaker, 3)
    end(probe, BROKEN)

    faults = await asyncio.gather(*waiting, return_exceptions=True)
    assert [fault.retry_after for fault in faults if isinstance(fault, CircuitOpen)] == [10, 10, 10]


async def test_the_wait_for_a_probe_is_bounded():
    clock = FakeClock()
    breaker = CircuitBreaker(threshold=1, max_wait=0.01, clock=clock)
    await fail(breaker)
    clock.now = 10.0
    probe = await breaker.admit()
    now = asyncio.get_running_loop().time()
    for deadline in (None, now + 60):
        with pytest.raises(CircuitOpen) as caught:
            await breaker.admit(deadline)
        assert (caught.value.status, caught.value.retry_after) == (503, 1)
    with pytest.raises(ModelFault) as caught:
        await breaker.admit(now)
    assert caught.value.status == 504

    probe.record_success()
    end(await breaker.admit())


async def test_a_cancelled_probe_is_followed_by_the_first_that_waits():
    clock = FakeClock()
    breaker = await open_breaker(clock)
    clock.now = 10.0
    probe = await breaker.admit()
    first, second = await start_waiting(breaker, 2)
    end(probe, asyncio.CancelledError())
    following = await first

    assert not second.done(), "one probe at a time"
    following.record_success()
    end(await second)


async def test_a_request_that_is_cancelled_while_it_becomes_the_probe_makes_way_for_the_next():
    clock = FakeClock()
    breaker = await open_breaker(clock)
    clock.now = 10.0
    probe = await breaker.admit()
    first, second = await start_waiting(breaker, 2)
    end(probe, asyncio.CancelledError())
    first.cancel()  # before it runs again

    end(await asyncio.wait_for(second, 10), BROKEN)
    assert first.cancelled()
    assert await seconds_until_admitted(breaker) == 10


async def test_a_wait_ends_at_the_deadline():
    clock = FakeClock()
    breaker = await open_breaker(clock)
    clock.now = 10.0
    probe = await breaker.admit()

    with pytest.raises(ModelFault) as caught:
        await breaker.admit(deadline=asyncio.get_running_loop().time())
    assert caught.value.status == 504
    end(probe)
    assert await seconds_until_admitted(breaker) == 0


STEPS = st.lists(
    st.one_of(
        st.just(("start", 0)),
        st.tuples(st.just("wait"), st.integers(0, 20)),
        st.tuples(st.sampled_from(["succeed", "fail", "cancel"]), st.integers(0, 5)),
    ),
    max_size=60,
)


@given(STEPS)
def test_an_open_breaker_has_one_probe_and_never_stays_open_for_ever(steps):
    asyncio.run(_check_steps(steps))


async def _check_steps(steps) -> None:
    clock = FakeClock()
    breaker = CircuitBreaker(threshold=3, pause=10.0, clock=clock)
    tasks: list[asyncio.Task[Attempt]] = []  # some wait, some are admitted and run
    for step, number in steps:
        if step == "wait":
            clock.now += number
        elif step == "start":
            was_open, running = breaker.is_open, sum(task.done() for task in tasks)
            tasks += await start_waiting(breaker, 1)
            if tasks[-1].done() and tasks[-1].exception():
                assert was_open
                tasks.pop()
            elif was_open:
                assert tasks[-1].done() or running, "a request waits only while another runs"
        elif tasks:
            await _end_task(tasks.pop(number % len(tasks)), step)
        await asyncio.sleep(0)
        tasks = [task for task in tasks if not (task.done() and task.exception())]
    while running_tasks := [task for task in tasks if task.done() and not task.exception()]:
        tasks.remove(running_tasks[0])
        await _end_task(running_tasks[0], "cancel")
        await asyncio.sleep(0)
    assert not [task for task in tasks if not task.done()], "no request waits for ever"
    clock.now += 10
    assert await seconds_until_admitted(breaker) == 0


async def _end_task(task: asyncio.Task[Attempt], step: str) -> None:
    if not task.done():  # it waits: its client cancels it
        task.cancel()
        await asyncio.wait([task])
        return
    attempt = task.result()
    if step == "succeed":
        attempt.record_success()
    end(attempt, {"succeed": None, "fail": BROKEN, "cancel": asyncio.CancelledError()}[step])


# ── the breakers of a model ──────────────────────────────────────────────────────────────────────────────────────────


async def test_a_breaker_without_failures_is_not_kept():
    breakers = CircuitBreakers(threshold=2, clock=FakeClock())
    idle = weakref.ref(breakers.of("a"))
    assert idle() is None

    await fail(breakers.of("a"))
    failing = weakref.ref(breakers.of("a"))
    assert failing() is not None
    await succeed(breakers.of("a"))
    assert failing() is None


async def test_attempts_at_the_same_time_share_a_breaker():
    breakers = CircuitBreakers(threshold=2, clock=FakeClock())
    first, second = await breakers.of("a").admit(), await breakers.of("a").admit()
    end(first, BROKEN)
    end(second, BROKEN)

    assert breakers.of("a").is_open
    assert not breakers.of("b").is_open


async def test_the_number_of_kept_breakers_is_limited():
    breakers = CircuitBreakers(threshold=1, clock=FakeClock(), max_kept=2)
    for tenant in "abc":
        await fail(breakers.of(tenant))

    assert [breakers.of(tenant).is_open for tenant in "abc"] == [False, True, True]
