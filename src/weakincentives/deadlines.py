"""`Deadline`: a timezone-aware point in time after which no work is started."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from weakincentives.clock import SYSTEM_CLOCK, Clock


@dataclass(frozen=True, slots=True)
class Deadline:
    """A timezone-aware time after which no more work is started.

    >>> from datetime import UTC, datetime
    >>> Deadline(datetime(2000, 1, 1, tzinfo=UTC)).expired
    True
    """

    expires_at: datetime
    clock: Clock = field(default=SYSTEM_CLOCK, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.expires_at.tzinfo is None:
            raise ValueError(
                "Deadline needs a timezone-aware datetime, such as datetime.now(UTC) + timedelta(minutes=5)"
            )

    @classmethod
    def after(cls, seconds: float, *, clock: Clock = SYSTEM_CLOCK) -> Deadline:
        """The deadline `seconds` from now."""
        return cls(clock.now() + timedelta(seconds=seconds), clock)

    @property
    def remaining(self) -> float:
        """Seconds left; 0 after the deadline."""
        return max(0.0, (self.expires_at - self.clock.now()).total_seconds())

    @property
    def expired(self) -> bool:
        return self.clock.now() >= self.expires_at

    def earlier(self, other: Deadline | None) -> Deadline:
        """The earlier of two deadlines."""
        return self if other is None or self.expires_at <= other.expires_at else other
