from __future__ import annotations

import asyncio
import random
from contextlib import aclosing, suppress

import msgspec
import pytest

from antwort.api.responses import Usage
from antwort.engine.ports import CompactedHistory, Finished, ModelFault, TextPiece
from antwort.models.circuit_breaker import CircuitBreakers, CircuitOpen
from antwort.models.instrumentation import Instrumentation
from antwort.models.retry import RetryingCompaction, RetryingModel, RetryPolicy
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

    def fail(self) -> None:
        """Raise the next fault, if there is one."""
        self.calls += 1
        if self.faults and (fault := self.faults.pop(0)):
            raise fault

    async def count_tokens(self, request):
        return 7

    async def aclose(self):
        self.is_closed = True


def retrying(model, clock=None, **options):
    clock = clock or FakeClock()
    options.setdefault("breakers", CircuitBreakers(clock=clock))
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


# ── circuit breakers ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_success_is_recorded_when_the_reader_stops_at_finished():
    """As the engine does: it closes the generator at `Finished` and does not exhaust it."""
    clock = FakeClock()
    breakers = CircuitBreakers(threshold=2, clock=clock)
    model, _ = retrying(FailingModel(BROKEN, None, BROKEN), clock, policy=RetryPolicy(attempts=1), breakers=breakers)
    with pytest.raises(ModelFault, match="broken"):
        await collect(model, make_request())
    async with aclosing(model.generate(make_request())) as pieces:
        async for piece in pieces:
            if isinstance(piece, Finished):
                break
    with pytest.raises(ModelFault, match="broken"):
        await collect(model, make_request())

    assert not breakers.of("").is_open


async def test_an_open_breaker_sends_no_request():
    clock = FakeClock()
    inner = FailingModel(*[BROKEN] * 3)
    breakers = CircuitBreakers(threshold=3, clock=clock)
    model, _ = retrying(inner, clock, policy=RetryPolicy(attempts=1), breakers=breakers)
    for _ in range(3):
        with pytest.raises(ModelFault, match="broken"):
            await collect(model, make_request())

    with pytest.raises(ModelFault, match="circuit breaker is open") as caught:
        await collect(model, make_request())
    assert (caught.value.status, caught.value.retry_after, caught.value.retryable, inner.calls) == (503, 10, True, 3)

    clock.now += 10.0
    assert (await collect(model, make_request()))[-1] == Finished()


async def open_breaker(model, clock):
    """Fail three times, the threshold of the breaker, and let the pause elapse."""
    for _ in range(3):
        with pytest.raises(ModelFault, match="broken"):
            await collect(model, make_request())
    clock.now += 10.0


async def test_a_request_that_opens_the_breaker_ends_with_its_own_fault_at_once():
    clock = FakeClock()
    inner = FailingModel(*[BROKEN] * 9)
    model, _ = retrying(inner, clock)
    for _ in range(2):
        with pytest.raises(ModelFault, match="broken"):
            await collect(model, make_request())

    assert (inner.calls, len(clock.slept)) == (5, 3), "every attempt counts; none is waited for in vain"


async def test_a_failed_probe_ends_with_its_own_fault_at_once():
    clock = FakeClock()
    model, _ = retrying(FailingModel(*[BROKEN] * 6), clock, breakers=CircuitBreakers(threshold=3, clock=clock))
    with pytest.raises(ModelFault, match="broken"):
        await collect(model, make_request())
    clock.now, clock.slept = clock.now + 10.0, []

    with pytest.raises(ModelFault, match="broken"):
        await collect(model, make_request())
    assert clock.slept == []


async def test_a_request_ends_with_its_own_fault_if_another_opens_the_breaker_before_its_retry():
    breakers = CircuitBreakers(threshold=2, clock=FakeClock())

    class OtherFails(FakeClock):
        async def sleep(self, seconds: float) -> None:
            with suppress(ModelFault), await breakers.of("").admit():
                raise ModelFault("other", retryable=True)

    inner = FailingModel(BROKEN)
    model, _ = retrying(inner, OtherFails(), breakers=breakers)

    with pytest.raises(ModelFault, match="broken"):
        await collect(model, make_request())
    assert inner.calls == 1


async def test_requests_after_the_pause_wait_for_the_probe():
    class GatedModel(FailingModel):
        released = asyncio.Event()

        async def generate(self, request):
            self.fail()
            await self.released.wait()
            yield Finished()

    inner, clock = GatedModel(*[BROKEN] * 3), FakeClock()
    breakers = CircuitBreakers(threshold=3, clock=clock)
    model, _ = retrying(inner, clock, policy=RetryPolicy(attempts=1), breakers=breakers)
    await open_breaker(model, clock)
    burst = [asyncio.create_task(collect(model, make_request())) for _ in range(5)]
    await asyncio.wait(burst, timeout=0.01)

    assert inner.calls == 4, "only the probe is sent"
    inner.released.set()
    assert await asyncio.gather(*burst) == [[Finished()]] * 5
    assert inner.calls == 8


async def test_a_request_that_waits_for_a_probe_ends_at_its_own_timeout():
    class SilentModel(FailingModel):
        async def generate(self, request):
            self.fail()
            await asyncio.sleep(30)
            yield Finished()

    clock = FakeClock()
    options = {"policy": RetryPolicy(attempts=1), "breakers": CircuitBreakers(threshold=3, clock=clock)}
    patient, _ = retrying(SilentModel(*[BROKEN] * 3), clock, **options)
    hurried, _ = retrying(FailingModel(), clock, total_timeout=0.05, **options)
    await open_breaker(patient, clock)
    probe = asyncio.create_task(collect(patient, make_request()))
    await asyncio.sleep(0)

    with pytest.raises(ModelFault) as caught:
        await collect(hurried, make_request())
    assert caught.value.status == 504
    probe.cancel()
    await asyncio.wait([probe])
    assert await collect(hurried, make_request()) == [TextPiece("Hello"), Finished()]


async def test_the_first_piece_of_a_probe_closes_the_breaker_until_the_next_failure():
    class SlowModel(FailingModel):
        async def generate(self, request):
            self.fail()
            yield TextPiece("slow")
            raise BROKEN

    clock = FakeClock()
    breakers = CircuitBreakers(threshold=3, clock=clock)
    model, _ = retrying(SlowModel(*[BROKEN] * 3), clock, policy=RetryPolicy(attempts=1), breakers=breakers)
    await open_breaker(model, clock)
    pieces = model.generate(make_request())

    assert await anext(pieces) == TextPiece("slow")
    assert not breakers.of("").is_open, "a probe that is read slowly keeps no other request waiting"
    with pytest.raises(ModelFault):
        await anext(pieces)
    assert breakers.of("").is_open, "one failure opens it again before an answer has completed"


async def test_the_failures_of_one_tenant_do_not_reject_another():
    inner, clock = FailingModel(*[BROKEN] * 3), FakeClock()
    model, _ = retrying(inner, clock, policy=RetryPolicy(attempts=1), breakers=CircuitBreakers(threshold=3))
    await open_breaker(model, clock)
    other = msgspec.structs.replace(make_request(), tenant="other")

    with pytest.raises(CircuitOpen):
        await collect(model, make_request())
    assert (await collect(model, other))[-1] == Finished()


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
    breakers = CircuitBreakers(threshold=2, clock=FakeClock())
    compaction, inner = FailingCompaction(BROKEN, BROKEN), FailingModel()
    model, _ = retrying(inner, policy=RetryPolicy(attempts=2), breakers=breakers)
    with pytest.raises(ModelFault, match="broken"):
        await RetryingCompaction(compaction, model).compact(make_request())

    with pytest.raises(CircuitOpen):
        await collect(model, make_request())
    assert inner.calls == 0


async def test_a_successful_compaction_resets_the_circuit_breaker():
    breakers = CircuitBreakers(threshold=2, clock=FakeClock())
    model, _ = retrying(FailingModel(), policy=RetryPolicy(attempts=1), breakers=breakers)
    for fault in (BROKEN, None, BROKEN):
        compaction = RetryingCompaction(FailingCompaction(*filter(None, [fault])), model)
        with suppress(ModelFault):
            await compaction.compact(make_request())

    assert not breakers.of("").is_open


async def test_a_compaction_ends_at_the_timeout_of_its_model():
    class SilentCompaction(FailingCompaction):
        async def compact(self, request):
            await asyncio.sleep(30)
            return self.compacted

    model, _ = retrying(FailingModel(), total_timeout=0.05)

    with pytest.raises(ModelFault) as caught:
        await RetryingCompaction(SilentCompaction(), model).compact(make_request())
    assert caught.value.status == 504
