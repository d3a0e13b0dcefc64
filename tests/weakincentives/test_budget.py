from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.budget import Budget, BudgetTracker, Overrun, TokenUsage
from weakincentives.deadlines import Deadline

usages = st.builds(TokenUsage, *(st.integers(0, 10_000) for _ in range(4)))


@given(st.lists(usages))
def test_token_usage_addition(parts):
    total = sum(parts, TokenUsage())

    assert total.input_tokens == sum(part.input_tokens for part in parts)
    assert total.output_tokens == sum(part.output_tokens for part in parts)
    assert total.cached_tokens == sum(part.cached_tokens for part in parts)
    assert total.reasoning_tokens == sum(part.reasoning_tokens for part in parts)
    assert total.total_tokens == sum(part.total_tokens for part in parts)


def test_cached_and_reasoning_tokens_are_parts_of_input_and_output():
    assert TokenUsage(input_tokens=10, output_tokens=5, cached_tokens=8, reasoning_tokens=4).total_tokens == 15


@pytest.mark.parametrize("limit", ["max_total_tokens", "max_input_tokens", "max_output_tokens"])
@pytest.mark.parametrize("tokens", [0, -1])
def test_limit_below_one_token_is_rejected(limit, tokens):
    with pytest.raises(ValueError, match=f"{limit} must be a positive number of tokens, not {tokens}"):
        Budget(**{limit: tokens})


def test_budget_without_limits_is_rejected():
    with pytest.raises(ValueError, match="at least one limit"):
        Budget()


def test_budget_with_only_a_deadline():
    tracker = BudgetTracker(Budget(deadline=Deadline.after(60)))
    tracker.record(TokenUsage(10**9, 10**9))

    assert tracker.overrun() is None


def test_tracker_counts_all_requests():
    tracker = BudgetTracker(Budget(max_total_tokens=100))

    tracker.record(TokenUsage(40, 20))
    assert tracker.overrun() is None

    tracker.record(TokenUsage(30, 15))
    assert tracker.usage == TokenUsage(70, 35)
    assert tracker.overrun() == Overrun("max_total_tokens", allowed=100, used=105)


def test_reaching_a_limit_is_not_an_overrun():
    tracker = BudgetTracker(Budget(max_total_tokens=100))
    tracker.record(TokenUsage(60, 40))

    assert tracker.overrun() is None


@pytest.mark.parametrize(
    "budget, limit, used",
    [
        (Budget(max_input_tokens=5), "max_input_tokens", 10),
        (Budget(max_output_tokens=5), "max_output_tokens", 20),
        (Budget(max_total_tokens=5, max_output_tokens=5), "max_total_tokens", 30),
    ],
)
def test_overrun_names_limit_and_usage(budget, limit, used):
    tracker = BudgetTracker(budget)
    tracker.record(TokenUsage(10, 20))

    overrun = tracker.overrun()

    assert overrun == Overrun(limit, allowed=5, used=used)
    assert str(overrun) == f"{limit} is 5, used {used}"


def test_tracker_is_thread_safe():
    tracker = BudgetTracker(Budget(max_total_tokens=10**9))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: tracker.record(TokenUsage(1, 1, 1, 1)), range(2_000)))

    assert tracker.usage == TokenUsage(2_000, 2_000, 2_000, 2_000)
