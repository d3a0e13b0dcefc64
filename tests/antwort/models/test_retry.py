from __future__ import annotations

import asyncio
import random
from contextlib import aclosing, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.responses import Usage
from antwort.engine.ports import CompactedHistory, Finished, ModelFault, TextPiece
from antwort.models.instrumentation import Instrumentation
from antwort.models.retry import CircuitBreaker, CircuitOpen, RetryingCompaction, RetryingModel, RetryPolicy
from antwort.telemetry import Metrics
from antwort.testing.model import collect, make_request

pytestmark = pytest.mark.anyio

JITTER = random.Random(1)  # noqa: S311 - jitter, not a secret
BUSY = ModelFault("busy", code="rate_limit_exceeded", status=429, retry_after=2, retryable=True)
BROKEN = ModelFault("broken", retryable=True)
WRONG = ModelFault("wrong", code="invalid_prompt", status=400)


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class FailingModel:
    """Raises the given faults in order, None for a success; succeeds after the last. `text` is yielded before each."""

    def __init__(self, *faults: ModelFault | None, text: str = "") -> None:
        self.faults = list(faults)
        self.text = text
        self.calls = 0
        self.is_closed = False

    async def generate(self, request):
        self.calls += 1
        fault = self.faults.pop(0) if self.faults else None
        if self.text:
            yield TextPiece(self.text)
        if fault:
            raise fault
        yield TextPiece("Hello")
        yield Finished()

    async def count_tokens(self, request):
        return 7

    async def aclose(self):
        self.is_closed = True


def retrying(model, clock=None, **options):
    clock = clock or FakeClock()
    options.setdefault("breaker", CircuitBreaker(clock=clock))
    instrumentation = Instrumentation(Metrics(), name="test", kind="test")
    return RetryingModel(model, instrumentation=instrumentation, sleep=clock.sleep, rng=JITTER, **options), clock


# ── retries ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_faults_before_the_first_piece_are_retried():
    model = FailingModel(BROKEN, BROKEN)
    wrapped, clock = retrying(model)

    assert await collect(wrapped, make_request()) == [TextPiece("Hello"), Finished()]
    assert model.calls == 3
    assert len(clock.slept) == 2


async def test_a_fault_after_the_first_piece_is_not_retried():
    model = FailingModel(BROKEN, text="So far ")
    wrapped, _ = retrying(model)

    with pytest.raises(ModelFault, match="broken"):
        await collect(wrapped, make_request())
    assert model.calls == 1


async def test_retry_after_is_waited_for():
    wrapped, clock = retrying(FailingModel(BUSY))

    await collect(wrapped, make_request())

    assert clock.slept == [2.0]


async def test_a_long_retry_after_is_returned_to_the_caller():
    late = ModelFault("busy", code="rate_limit_exceeded", status=429, retry_after=60, retryable=True)
    wrapped, clock = retrying(FailingModel(late))

    with pytest.raises(ModelFault) as caught:
        await collect(wrapped, make_request())
    assert (caught.value.retry_after, clock.slept) == (60, [])


async def test_a_fault_that_is_not_retryable_is_not_retried():
    model = FailingModel(WRONG)
    wrapped, _ = retrying(model)

    with pytest.raises(ModelFault, match="wrong"):
        await collect(wrapped, make_request())
    assert model.calls == 1


async def test_retries_stop_after_the_configured_attempts():
    model = FailingModel(*[BROKEN] * 9)
    wrapped, _ = retrying(model, policy=RetryPolicy(attempts=4))

    with pytest.raises(ModelFault, match="broken"):
        await collect(wrapped, make_request())
    assert model.calls == 4


async def test_no_retry_after_the_total_timeout():
    wrapped, clock = retrying(FailingModel(BUSY), total_timeout=1.0)

    with pytest.raises(ModelFault, match="busy"):
        await collect(wrapped, make_request())
    assert clock.slept == []


def test_backoff_has_full_jitter_and_a_doubling_bound():
    policy = RetryPolicy(attempts=99, base_backoff=1.0, max_backoff=8.0)
    for attempt, bound in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (50, 8.0)):
        waits = [policy.backoff(attempt, BROKEN, JITTER) or 0.0 for _ in range(500)]
        assert 0 <= min(waits) < bound * 0.1
        assert bound * 0.9 < max(waits) <= bound


async def test_total_timeout_raises_504():
    class SlowModel(FailingModel):
        async def generate(self, request):
            yield TextPiece("So far ")
            await asyncio.sleep(30)
            yield Finished()

    wrapped, _ = retrying(SlowModel(), total_timeout=0.05)

    with pytest.raises(ModelFault) as caught:
        await collect(wrapped, make_request())
    assert caught.value.status == 504


async def test_total_timeout_does_not_include_the_readers_time():
    wrapped, _ = retrying(FailingModel(), total_timeout=0.05)

    async with aclosing(wrapped.generate(make_request())) as pieces:
        read = [(piece, await asyncio.sleep(0.1)) async for piece in pieces]  # the deadline passes meanwhile
    assert read[-1][0] == Finished()


async def test_count_tokens_and_aclose_are_delegated():
    model = FailingModel()
    wrapped, _ = retrying(model)

    assert await wrapped.count_tokens(make_request()) == 7
    await wrapped.aclose()
    assert model.is_closed


# ── circuit breaker ──────────────────────────────────────────────────────────────────────────────────────────────────


def fail(breaker: CircuitBreaker, fault: ModelFault = BROKEN) -> None:
    with pytest.raises(ModelFault, match=fault.message), breaker.attempt():
        raise fault


def succeed(breaker: CircuitBreaker) -> None:
    with breaker.attempt():
        breaker.record_success()


def seconds_until_admitted(breaker: CircuitBreaker) -> float:
    try:
        with breaker.attempt():
            return 0
    except CircuitOpen as fault:
        return fault.retry_after or 0


def open_breaker(clock, threshold=3, pause=10.0):
    breaker = CircuitBreaker(threshold=threshold, pause=pause, clock=clock)
    for _ in range(threshold):
        fail(breaker)
    return breaker


def test_consecutive_failures_open_the_breaker():
    clock = FakeClock()
    breaker = open_breaker(clock)
    clock.now = 4.0

    assert breaker.is_open
    assert seconds_until_admitted(breaker) == 6


def test_failures_between_successes_do_not_open_the_breaker():
    breaker = CircuitBreaker(threshold=2, clock=FakeClock())
    for _ in range(5):
        fail(breaker)
        succeed(breaker)

    assert not breaker.is_open


@pytest.mark.parametrize("fault", [BUSY, WRONG])
def test_a_4xx_answer_counts_as_success(fault):
    breaker = CircuitBreaker(threshold=2, clock=FakeClock())
    fail(breaker)
    fail(breaker, fault)
    fail(breaker)

    assert not breaker.is_open


def test_after_the_pause_one_probe_is_admitted_at_a_time():
    clock = FakeClock()
    breaker = open_breaker(clock)
    clock.now = 10.0
    with breaker.attempt():
        assert seconds_until_admitted(breaker) == 10

    assert seconds_until_admitted(breaker) == 0


def test_a_successful_probe_closes_the_breaker_and_resets_the_count():
    clock = FakeClock()
    breaker = open_breaker(clock)
    clock.now = 10.0
    succeed(breaker)
    fail(breaker)

    assert not breaker.is_open


def test_a_failed_probe_restarts_the_pause():
    clock = FakeClock()
    breaker = open_breaker(clock)
    clock.now = 10.0
    fail(breaker)

    assert seconds_until_admitted(breaker) == 10


def test_a_late_failure_does_not_restart_the_pause():
    clock = FakeClock()
    breaker = CircuitBreaker(threshold=1, clock=clock)
    late = breaker.attempt()
    late.__enter__()
    fail(breaker)
    clock.now = 4.0
    late.__exit__(ModelFault, BROKEN, None)

    assert seconds_until_admitted(breaker) == 6


def test_a_late_success_closes_the_breaker():
    breaker = CircuitBreaker(threshold=1, clock=FakeClock())
    with breaker.attempt():
        fail(breaker)
        breaker.record_success()

    assert not breaker.is_open


STEPS = st.one_of(
    st.just(("start", 0)),
    st.tuples(st.just("wait"), st.integers(0, 20)),
    st.tuples(st.sampled_from(["succeed", "fail", "cancel"]), st.integers(0, 5)),
)


@given(st.lists(STEPS, max_size=60))
def test_an_open_breaker_has_at_most_one_probe_and_never_stays_open_for_ever(steps):
    clock = FakeClock()
    breaker = CircuitBreaker(threshold=3, pause=10.0, clock=clock)
    running = []  # (attempt, is_probe)
    for step, number in steps:
        if step == "wait":
            clock.now += number
        elif step == "start":
            attempt, is_probe = breaker.attempt(), breaker.is_open
            with suppress(CircuitOpen):
                attempt.__enter__()
                assert not (is_probe and any(probe for _, probe in running))
                running.append((attempt, is_probe))
        elif running:
            attempt, _ = running.pop(number % len(running))
            if step == "succeed":
                breaker.record_success()
            fault = {"succeed": None, "fail": BROKEN, "cancel": asyncio.CancelledError()}[step]
            attempt.__exit__(type(fault) if fault else None, fault, None)
    for attempt, _ in running:
        attempt.__exit__(None, None, None)
    clock.now += 10
    assert seconds_until_admitted(breaker) == 0


async def test_success_is_recorded_when_the_reader_stops_at_finished():
    """As the engine does: it closes the generator at `Finished` and does not exhaust it."""
    clock = FakeClock()
    breaker = CircuitBreaker(threshold=2, clock=clock)
    model, _ = retrying(FailingModel(BROKEN, None, BROKEN), clock, policy=RetryPolicy(attempts=1), breaker=breaker)
    with pytest.raises(ModelFault, match="broken"):
        await collect(model, make_request())
    async with aclosing(model.generate(make_request())) as pieces:
        async for piece in pieces:
            if isinstance(piece, Finished):
                break
    with pytest.raises(ModelFault, match="broken"):
        await collect(model, make_request())

    assert not breaker.is_open


async def test_an_open_breaker_sends_no_request():
    clock = FakeClock()
    inner = FailingModel(*[BROKEN] * 3)
    breaker = CircuitBreaker(threshold=3, clock=clock)
    model, _ = retrying(inner, clock, policy=RetryPolicy(attempts=1), breaker=breaker)
    for _ in range(3):
        with pytest.raises(ModelFault, match="broken"):
            await collect(model, make_request())

    with pytest.raises(ModelFault, match="circuit breaker is open") as caught:
        await collect(model, make_request())
    assert (caught.value.status, caught.value.retry_after, caught.value.retryable, inner.calls) == (503, 10, True, 3)

    clock.now += 10.0
    assert (await collect(model, make_request()))[-1] == Finished()


async def test_a_cancelled_probe_makes_way_for_the_next():
    clock = FakeClock()
    breaker = open_breaker(clock)
    clock.now = 10.0

    class SilentModel(FailingModel):
        async def generate(self, request):
            await asyncio.sleep(30)
            yield Finished()

    model, _ = retrying(SilentModel(), clock, breaker=breaker)
    task = asyncio.create_task(collect(model, make_request()))
    await asyncio.sleep(0.01)
    assert seconds_until_admitted(breaker) == 10
    task.cancel()
    await asyncio.wait([task])

    assert seconds_until_admitted(breaker) == 0


async def test_the_first_piece_of_a_probe_closes_the_breaker_until_the_next_failure():
    clock = FakeClock()
    breaker = open_breaker(clock)
    clock.now = 10.0

    class SlowModel(FailingModel):
        async def generate(self, request):
            yield TextPiece("slow")
            raise BROKEN

    model, _ = retrying(SlowModel(), clock, breaker=breaker)
    pieces = model.generate(make_request())

    assert await anext(pieces) == TextPiece("slow")
    assert not breaker.is_open, "a probe that is read slowly keeps no other request out"
    with pytest.raises(ModelFault):
        await anext(pieces)
    assert breaker.is_open, "one failure opens it again before an answer has completed"


# ── compaction ───────────────────────────────────────────────────────────────────────────────────────────────────────


class FailingCompaction:
    """Raises the given faults in order; succeeds after the last."""

    compacted = CompactedHistory([{"type": "compaction", "id": "cmp_1"}], Usage(input_tokens=9))

    def __init__(self, *faults: ModelFault) -> None:
        self.faults = list(faults)
        self.calls = 0

    async def is_supported(self) -> bool:
        return True

    async def compact(self, request):
        self.calls += 1
        if self.faults:
            raise self.faults.pop(0)
        return self.compacted


async def test_a_compaction_is_retried_with_the_policy_of_its_model():
    compaction = FailingCompaction(BROKEN, BUSY)
    model, clock = retrying(FailingModel())
    wrapped = RetryingCompaction(compaction, model)

    assert await wrapped.is_supported()
    assert await wrapped.compact(make_request()) == FailingCompaction.compacted
    assert (compaction.calls, clock.slept[1]) == (3, 2.0)


async def test_a_compaction_that_cannot_succeed_is_not_retried():
    for fault, attempts, calls in ((WRONG, 3, 1), (BROKEN, 2, 2)):
        compaction = FailingCompaction(*[fault] * 9)
        model, _ = retrying(FailingModel(), policy=RetryPolicy(attempts=attempts))
        with pytest.raises(ModelFault, match=fault.message):
            await RetryingCompaction(compaction, model).compact(make_request())
        assert compaction.calls == calls


async def test_a_compaction_shares_the_circuit_breaker_of_its_model():
    breaker = CircuitBreaker(threshold=2, clock=FakeClock())
    compaction, inner = FailingCompaction(BROKEN, BROKEN), FailingModel()
    model, _ = retrying(inner, policy=RetryPolicy(attempts=2), breaker=breaker)
    with pytest.raises(ModelFault, match="broken"):
        await RetryingCompaction(compaction, model).compact(make_request())

    with pytest.raises(CircuitOpen):
        await collect(model, make_request())
    assert inner.calls == 0


async def test_a_successful_compaction_resets_the_circuit_breaker():
    breaker = CircuitBreaker(threshold=2, clock=FakeClock())
    model, _ = retrying(FailingModel(), policy=RetryPolicy(attempts=1), breaker=breaker)
    for fault in (BROKEN, None, BROKEN):
        compaction = RetryingCompaction(FailingCompaction(*filter(None, [fault])), model)
        with suppress(ModelFault):
            await compaction.compact(make_request())

    assert not breaker.is_open


async def test_a_compaction_ends_at_the_timeout_of_its_model():
    class SilentCompaction(FailingCompaction):
        async def compact(self, request):
            await asyncio.sleep(30)
            return self.compacted

    model, _ = retrying(FailingModel(), total_timeout=0.05)

    with pytest.raises(ModelFault) as caught:
        await RetryingCompaction(SilentCompaction(), model).compact(make_request())
    assert caught.value.status == 504
