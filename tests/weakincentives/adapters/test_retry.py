from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest

from weakincentives.adapters.retry import ThrottlePolicy, is_retryable, parse_retry_after, with_backoff
from weakincentives.clock import ManualClock
from weakincentives.deadlines import Deadline
from weakincentives.errors import ProviderFault


class Flaky:
    def __init__(self, *faults: ProviderFault) -> None:
        self.faults = list(faults)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.faults:
            raise self.faults.pop(0)
        return "answer"


@pytest.mark.parametrize(
    "fault, expected",
    [
        (ProviderFault("no connection"), True),
        (ProviderFault("timeout", status=408), True),
        (ProviderFault("conflict", status=409), True),
        (ProviderFault("rate limit", status=429), True),
        (ProviderFault("server", status=500), True),
        (ProviderFault("overloaded", status=529), True),
        (ProviderFault("bad request", status=400), False),
        (ProviderFault("no key", status=401), False),
        (ProviderFault("said no", status=500, should_retry=False), False),
        (ProviderFault("said yes", status=400, should_retry=True), True),
    ],
    ids=str,
)
def test_is_retryable(fault: ProviderFault, expected: bool):
    assert is_retryable(fault) is expected


def test_delays_are_random_below_a_doubling_bound():
    clock = ManualClock()
    policy = ThrottlePolicy(max_attempts=6, base_delay=1.0, max_delay=4.0)
    call = Flaky(*[ProviderFault("busy", status=429) for _ in range(5)])

    assert with_backoff(call, policy=policy, clock=clock, rng=random.Random(7)) == "answer"  # noqa: S311 - jitter, not a secret
    assert len(clock.slept) == 5
    for wait, bound in zip(clock.slept, (1, 2, 4, 4, 4), strict=True):
        assert 0 <= wait <= bound
    assert len(set(clock.slept)) == 5


def test_retry_after_is_the_minimum_delay_also_beyond_max_delay():
    clock = ManualClock()
    call = Flaky(ProviderFault("busy", status=429, retry_after=90.0))

    assert with_backoff(call, policy=ThrottlePolicy(max_delay=1.0), clock=clock) == "answer"
    assert clock.slept == [90.0]


def test_gives_up_without_sleeping_if_the_delay_exceeds_the_deadline():
    clock = ManualClock()
    call = Flaky(ProviderFault("busy", status=429, retry_after=30.0))

    with pytest.raises(ProviderFault, match="busy"):
        with_backoff(call, policy=ThrottlePolicy(), deadline=Deadline.after(10, clock=clock), clock=clock)
    assert clock.slept == []
    assert call.calls == 1


def test_retry_after_above_the_maximum_ends_the_retries():
    clock = ManualClock()
    with pytest.raises(ProviderFault):
        with_backoff(Flaky(ProviderFault("busy", status=429, retry_after=9999)), policy=ThrottlePolicy(), clock=clock)
    assert clock.slept == []


def test_gives_up_after_max_attempts_and_at_once_if_not_retryable():
    clock = ManualClock()
    busy = Flaky(*[ProviderFault("busy", status=503) for _ in range(9)])
    with pytest.raises(ProviderFault):
        with_backoff(busy, policy=ThrottlePolicy(max_attempts=3), clock=clock)
    assert busy.calls == 3

    refused = Flaky(ProviderFault("no key", status=401))
    with pytest.raises(ProviderFault):
        with_backoff(refused, policy=ThrottlePolicy(), clock=clock)
    assert refused.calls == 1


def test_other_exceptions_are_not_retried():
    def broken() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        with_backoff(broken, policy=ThrottlePolicy(), clock=ManualClock())


@pytest.mark.parametrize(
    "headers, expected",
    [
        ({}, None),
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 2026 00:00:30 GMT"}, 30.0),
        ({"retry-after": "Thu, 01 Jan 2015 00:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after-ms": "nan-ish"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after-ms": "nan"}, None),
        ({"retry-after-ms": "inf"}, None),
    ],
    ids=str,
)
def test_parse_retry_after(headers: dict[str, str], expected: float | None):
    assert parse_retry_after(headers, now=datetime(2026, 1, 1, tzinfo=UTC)) == expected


def test_invalid_policy_is_rejected():
    with pytest.raises(ValueError, match="max_attempts"):
        ThrottlePolicy(max_attempts=0)
