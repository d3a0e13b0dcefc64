"""Retries with exponential back-off and full jitter. Retries of the SDK are disabled.

Replacing an expired container, which repeats a request once, is in `adapters/openai`.
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from weakincentives.clock import SYSTEM_CLOCK, Clock
from weakincentives.dbc import ensure
from weakincentives.deadlines import Deadline
from weakincentives.errors import ProviderFault

T = TypeVar("T")

_logger = logging.getLogger(__name__)

_RETRYABLE_STATUSES = frozenset({408, 409, 429})
_FIRST_SERVER_ERROR = 500
_DECIMAL_RE = re.compile(r"\d+(\.\d*)?")


@dataclass(frozen=True, slots=True)
class ThrottlePolicy:
    """Exponential back-off with full jitter: each delay is random between 0 and `base_delay * 2**n`, up to `max_delay`.

    `max_retry_after` is the longest `retry-after` that is waited for; a longer one ends the retries.
    """

    max_attempts: int = 6
    base_delay: float = 0.5
    max_delay: float = 60.0
    max_retry_after: float = 300.0

    def __post_init__(self) -> None:
        if self.max_attempts < 1 or self.base_delay < 0 or self.max_delay < self.base_delay:
            raise ValueError("ThrottlePolicy needs max_attempts >= 1 and 0 <= base_delay <= max_delay")

    @ensure(lambda fault, result: result >= (fault.retry_after or 0), "the delay is not below `retry-after`")
    def delay(self, attempt: int, fault: ProviderFault, rng: random.Random) -> float:
        """Seconds to wait after attempt number `attempt`, which starts at 1; at least the provider's `retry-after`."""
        bound = min(self.max_delay, self.base_delay * 2 ** (attempt - 1))
        return max(fault.retry_after or 0.0, rng.uniform(0, bound))


def is_retryable(fault: ProviderFault) -> bool:
    """Whether a retry may succeed: `x-should-retry` if the provider sent it, else by HTTP status."""
    if fault.should_retry is not None:
        return fault.should_retry
    return fault.status is None or fault.status in _RETRYABLE_STATUSES or fault.status >= _FIRST_SERVER_ERROR


def with_backoff(
    call: Callable[[], T],
    *,
    policy: ThrottlePolicy,
    deadline: Deadline | None = None,
    clock: Clock = SYSTEM_CLOCK,
    rng: random.Random | None = None,
) -> T:
    """Call until it succeeds; give up on errors that are not retryable, after `max_attempts`, or at the deadline."""
    rng = rng or random.Random()  # noqa: S311 - jitter, not cryptography
    attempt = 1
    while True:
        try:
            return call()
        except ProviderFault as fault:
            if attempt >= policy.max_attempts or not is_retryable(fault):
                raise
            wait = policy.delay(attempt, fault, rng)
            if wait > policy.max_retry_after or (deadline is not None and wait >= deadline.remaining):
                raise
            _logger.info("attempt %d failed (%s); retry in %.2f s", attempt, fault, wait)
            clock.sleep(wait)
            attempt += 1


def parse_retry_after(headers: Mapping[str, str], *, now: datetime | None = None) -> float | None:
    """Seconds from the header `retry-after-ms`, or from `retry-after` as seconds or as an HTTP date; None without."""
    lowered = {name.lower(): value.strip() for name, value in headers.items()}
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        if _DECIMAL_RE.fullmatch(lowered.get(name, "")):
            return float(lowered[name]) * unit
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - slow to import, rarely needed

    try:
        date = parsedate_to_datetime(lowered.get("retry-after", ""))
    except ValueError:
        return None  # an invalid header is ignored
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - (now or datetime.now(UTC))).total_seconds())
