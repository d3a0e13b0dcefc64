"""Time, as something that can be handed in. Imports nothing of ours."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """What the package asks of time."""

    def now(self) -> datetime:
        """The wall-clock time, timezone-aware."""
        ...

    def monotonic(self) -> float:
        """Seconds that only ever grow."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The machine's own time."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class ManualClock:
    """Time that moves only when told to: by `advance`, or by somebody's `sleep`.

    For tests, ours and yours: a back-off of a minute takes no time, and `slept`
    tells what was waited for.
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
        """Move time forward."""
        if seconds < 0:
            raise ValueError("time does not go back: advance() takes seconds >= 0")
        self._elapsed += seconds


SYSTEM_CLOCK = SystemClock()
