"""Token budgets: limits on token usage, and a tracker that adds up the usage of requests."""

from __future__ import annotations

from dataclasses import dataclass, fields
from threading import Lock

from weakincentives.deadlines import Deadline


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Token usage of one request, or the sum of several."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of an evaluation; None means no limit."""

    max_total_tokens: int | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    deadline: Deadline | None = None

    def __post_init__(self) -> None:
        for name in ("max_total_tokens", "max_input_tokens", "max_output_tokens"):
            limit: int | None = getattr(self, name)
            if limit is not None and limit <= 0:
                raise ValueError(f"{name} must be a positive number of tokens, not {limit}; use None for no limit")
        if all(getattr(self, limit.name) is None for limit in fields(self)):
            raise ValueError("a Budget needs at least one limit: tokens or a deadline")


@dataclass(frozen=True, slots=True)
class Overrun:
    """A limit that was exceeded."""

    limit: str
    allowed: int
    used: int

    def __str__(self) -> str:
        return f"{self.limit} is {self.allowed}, used {self.used}"


class BudgetTracker:
    """Adds up the token usage of requests. Thread-safe: several evaluations may share one tracker."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._usage = TokenUsage()
        self._lock = Lock()

    @property
    def usage(self) -> TokenUsage:
        """The total usage so far."""
        return self._usage

    def record(self, usage: TokenUsage) -> None:
        """Add the usage of one request."""
        with self._lock:
            self._usage += usage

    def overrun(self) -> Overrun | None:
        """The first limit that is exceeded; None if there is none."""
        usage = self._usage
        for name in ("total_tokens", "input_tokens", "output_tokens"):
            allowed: int | None = getattr(self.budget, f"max_{name}")
            used: int = getattr(usage, name)
            if allowed is not None and used > allowed:
                return Overrun(f"max_{name}", allowed, used)
        return None
