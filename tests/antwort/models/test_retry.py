from __future__ import annotations

import asyncio
import random
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.engine.ports import Finished, ModelFault, TextPiece
from antwort.models.retry import CircuitBreaker, Resilient, RetryPolicy, State, Ticket
from antwort.testing.model import asking, collect

pytestmark = pytest.mark.anyio

JITTER = random.Random(1)  # noqa: S311 - jitter, not a secret
BUSY = ModelFault("busy", code="rate_limit_exceeded", status=429, retry_after=2, retryable=True)
BROKEN = ModelFault("broken", retryable=True)
WRONG = ModelFault("wrong", code="invalid_request", status=400)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Moody:
    """A model that fails as it is told, and answers when there is nothing left of that."""

    def __init__(self, *faults: ModelFault | None, after: str = "") -> None:
        self.faults = list(faults)
        self.after = after
        self.asked = 0

    async def generate(self, request):
        self.asked += 1
        fault = self.faults.pop(0) if self.faults else None
        if self.after:
            yield TextPiece(self.after)
        if fault:
            raise fault
        yield TextPiece("Hello")
        yield Finished()

    async def count_tokens(self, request):
        return 7

    async def aclose(self):
        self.asked = -1


def resilient(model, **options):
    clock = Clock()
    options.setdefault("breaker", CircuitBreaker(clock=clock))
    return Resilient(model, sleep=clock.sleep, rng=JITTER, **options), clock


# ── retries ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_has_not_begun_is_tried_again():
    model = Moody(BROKEN, BROKEN)
    wrapped, clock = resilient(model)

    assert await collect(wrapped, asking()) == [TextPiece("Hello"), Finished()]
    assert model.asked == 3
    assert len(clock.slept) == 2


async def test_what_has_begun_is_not():
    model = Moody(BROKEN, after="So far ")
    wrapped, _ = resilient(model)

    with pytest.raises(ModelFault, match="broken"):
        await collect(wrapped, asking())
    assert model.asked == 1


async def test_what_is_asked_for_is_waited_for():
    wrapped, clock = resilient(Moody(BUSY))

    await collect(wrapped, asking())

    assert clock.slept == [2.0]


async def test_a_wait_that_is_too_long_is_the_callers():
    late = ModelFault("busy", code="rate_limit_exceeded", status=429, retry_after=60, retryable=True)
    wrapped, clock = resilient(Moody(late))

    with pytest.raises(ModelFault) as caught:
        await collect(wrapped, asking())
    assert (caught.value.retry_after, clock.slept) == (60, [])


async def test_what_is_wrong_stays_wrong():
    model = Moody(WRONG)
    wrapped, _ = resilient(model)

    with pytest.raises(ModelFault, match="wrong"):
        await collect(wrapped, asking())
    assert model.asked == 1


async def test_tries_come_to_an_end():
    model = Moody(*[BROKEN] * 9)
    wrapped, _ = resilient(model, policy=RetryPolicy(attempts=4))

    with pytest.raises(ModelFault, match="broken"):
        await collect(wrapped, asking())
    assert model.asked == 4


async def test_no_wait_outlasts_the_time_limit():
    wrapped, clock = resilient(Moody(BUSY), total_timeout=1.0)

    with pytest.raises(ModelFault, match="busy"):
        await collect(wrapped, asking())
    assert clock.slept == []


def test_the_jitter_is_full_and_its_bound_doubles():
    policy = RetryPolicy(attempts=99, base=1.0, longest=8.0)
    for attempt, bound in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (50, 8.0)):
        waits = [policy.wait(attempt, BROKEN, JITTER) or 0.0 for _ in range(500)]
        assert 0 <= min(waits) < bound * 0.1
        assert bound * 0.9 < max(waits) <= bound


async def test_an_answer_that_takes_too_long_is_a_fault():
    class Slow(Moody):
        async def generate(self, request):
            yield TextPiece("So far ")
            await asyncio.sleep(30)
            yield Finished()

    wrapped, _ = resilient(Slow(), total_timeout=0.05)

    with pytest.raises(ModelFault) as caught:
        await collect(wrapped, asking())
    assert caught.value.status == 504


async def test_the_time_limit_is_not_the_readers():
    wrapped, _ = resilient(Moody(), total_timeout=0.05)

    async with aclosing(wrapped.generate(asking())) as pieces:
        read = [(piece, await asyncio.sleep(0.1)) async for piece in pieces]  # not cut short by the limit meanwhile
    assert read[-1][0] == Finished()


async def test_the_rest_of_the_port_is_passed_through():
    model = Moody()
    wrapped, _ = resilient(model)

    assert await wrapped.count_tokens(asking()) == 7
    await wrapped.aclose()
    assert model.asked == -1


# ── the breaker ──────────────────────────────────────────────────────────────────────────────────────────────────────


def entered(breaker: CircuitBreaker) -> Ticket:
    ticket = breaker.enter()
    assert isinstance(ticket, Ticket)
    return ticket


def opened(clock, threshold=3, pause=10.0):
    breaker = CircuitBreaker(threshold=threshold, pause=pause, clock=clock)
    for _ in range(threshold):
        breaker.failed(entered(breaker))
    return breaker


def test_failures_in_a_row_open_it():
    clock = Clock()
    breaker = opened(clock)
    clock.now = 4.0

    assert breaker.state is State.OPEN
    assert breaker.enter() == 6.0


def test_failures_with_an_answer_in_between_do_not():
    breaker = CircuitBreaker(threshold=2, clock=Clock())
    for _ in range(5):
        breaker.failed(entered(breaker))
        breaker.succeeded(entered(breaker))

    assert breaker.state is State.CLOSED


def test_after_the_pause_one_may_try():
    clock = Clock()
    breaker = opened(clock)
    clock.now = 10.0
    entered(breaker)

    assert breaker.state is State.HALF_OPEN
    assert not isinstance(breaker.enter(), Ticket)


def test_its_answer_closes_it_on_probation():
    clock = Clock()
    breaker = opened(clock)
    clock.now = 10.0
    ticket = breaker.began(entered(breaker))

    assert breaker.state is State.CLOSED
    breaker.failed(ticket)
    assert breaker.state is State.OPEN


def test_its_whole_answer_clears_the_count():
    clock = Clock()
    breaker = opened(clock)
    clock.now = 10.0
    breaker.succeeded(breaker.began(entered(breaker)))
    breaker.failed(entered(breaker))

    assert breaker.state is State.CLOSED


def test_its_failure_opens_it_for_another_pause():
    clock = Clock()
    breaker = opened(clock)
    clock.now = 10.0
    breaker.failed(entered(breaker))

    assert breaker.enter() == 10.0


def test_when_nobody_waits_for_it_the_next_one_tries():
    clock = Clock()
    breaker = opened(clock)
    clock.now = 10.0
    breaker.abandoned(entered(breaker))

    assert isinstance(breaker.enter(), Ticket)


def test_old_news_changes_nothing():
    clock = Clock()
    breaker = CircuitBreaker(threshold=1, clock=clock)
    old = entered(breaker)
    breaker.failed(entered(breaker))
    breaker.succeeded(old)
    assert breaker.state is State.OPEN
    clock.now = 10.0
    entered(breaker)
    breaker.failed(old)
    breaker.abandoned(old)

    assert breaker.state is State.HALF_OPEN


HAPPENINGS = st.one_of(
    st.just(("enter", 0)),
    st.tuples(st.just("wait"), st.integers(0, 20)),
    st.tuples(st.sampled_from(["succeeded", "failed", "abandoned", "began"]), st.integers(0, 5)),
)


@given(st.lists(HAPPENINGS, max_size=60))
def test_whatever_happens_only_one_is_on_trial_and_it_never_stays_shut_for_good(happenings):
    clock = Clock()
    breaker = CircuitBreaker(threshold=3, pause=10.0, clock=clock)
    tickets: list[Ticket] = []
    for what, number in happenings:
        if what == "wait":
            clock.now += number
        elif what == "enter":
            before, ticket = breaker.state, breaker.enter()
            if isinstance(ticket, Ticket):
                assert before is not State.HALF_OPEN
                tickets.append(ticket)
            else:
                assert 0 < ticket <= 10.0
        elif tickets:
            heard = getattr(breaker, what)(tickets.pop(number % len(tickets)))
            tickets += [heard] if heard is not None else []
        if breaker.state is State.HALF_OPEN:
            assert any(ticket.generation == breaker._generation for ticket in tickets)


async def test_an_open_breaker_asks_nobody():
    model = Moody(*[BROKEN] * 3)
    wrapped, clock = resilient(model, policy=RetryPolicy(attempts=1), breaker=None)
    wrapped._breaker = CircuitBreaker(threshold=3, clock=clock)
    for _ in range(3):
        with pytest.raises(ModelFault, match="broken"):
            await collect(wrapped, asking())

    with pytest.raises(ModelFault, match="left alone") as caught:
        await collect(wrapped, asking())
    assert (caught.value.status, caught.value.retry_after, caught.value.retryable, model.asked) == (503, 10, True, 3)

    clock.now += 10.0
    assert (await collect(wrapped, asking()))[-1] == Finished()


@pytest.mark.parametrize("fault", [BUSY, WRONG])
async def test_a_refusal_is_no_failure(fault):
    clock = Clock()
    breaker = CircuitBreaker(threshold=1, clock=clock)
    wrapped = Resilient(Moody(fault), policy=RetryPolicy(attempts=1), breaker=breaker, sleep=clock.sleep)

    with pytest.raises(ModelFault):
        await collect(wrapped, asking())
    assert breaker.state is State.CLOSED


async def test_one_who_leaves_during_the_trial_gives_way():
    clock = Clock()
    breaker = opened(clock)
    clock.now = 10.0

    class Silent(Moody):
        async def generate(self, request):
            await asyncio.sleep(30)
            yield Finished()

    wrapped = Resilient(Silent(), breaker=breaker, sleep=clock.sleep)
    task = asyncio.create_task(collect(wrapped, asking()))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])

    assert isinstance(breaker.enter(), Ticket)
