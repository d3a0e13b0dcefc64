from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from weakincentives.clock import SYSTEM_CLOCK, ManualClock


def test_system_clock():
    before = SYSTEM_CLOCK.monotonic()
    SYSTEM_CLOCK.sleep(0.001)

    assert SYSTEM_CLOCK.monotonic() - before >= 0.001
    assert SYSTEM_CLOCK.now().utcoffset() == timedelta(0)


def test_manual_clock_moves_only_with_advance():
    start = datetime(2030, 5, 1, 12, tzinfo=UTC)
    clock = ManualClock(start)

    assert (clock.now(), clock.monotonic()) == (start, 0.0)

    clock.advance(90)

    assert (clock.now(), clock.monotonic()) == (start + timedelta(seconds=90), 90.0)


def test_manual_sleep_does_not_block_and_is_recorded():
    clock = ManualClock()

    clock.sleep(3600)
    clock.sleep(0.5)

    assert clock.slept == [3600, 0.5]
    assert clock.monotonic() == 3600.5


def test_manual_clock_rejects_negative_seconds():
    clock = ManualClock()

    with pytest.raises(ValueError, match="takes seconds >= 0"):
        clock.advance(-1)

    assert clock.monotonic() == 0.0
