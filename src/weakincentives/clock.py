"""`Clock`: an injectable source of time, with a manual clock for tests."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Wall-clock time, monotonic time and sleep."""

    def now(self) -> datetime:
        """The wall-clock time, timezone-aware."""
        ...

    def monotonic(self) -> float:
        """Monotonic seconds."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block for `seconds`."""
        ...


class SystemClock:
    """The system clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class ManualClock:
    """A clock for tests: time moves only with `advance` and `sleep`, which does not block.

    `slept` records the durations that were passed to `sleep`.
    """

    def __init__(self, start: datetime | None = None) -> None:
        self._start = start or datetime(2026, 1, 1, tzinfo=UTC)
        self._elapsed = 0.0
        self.slept: list[float] = []

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        return self._elapsed

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move the time forward."""
        if seconds < 0:
            raise ValueError("advance() takes seconds >= 0")
        self._elapsed += seconds


SYSTEM_CLOCK = SystemClock()
