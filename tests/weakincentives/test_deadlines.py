from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from weakincentives.clock import ManualClock
from weakincentives.deadlines import Deadline


def test_expires_at_the_given_time():
    clock = ManualClock()
    deadline = Deadline.after(10, clock=clock)

    assert (deadline.remaining, deadline.expired) == (10.0, False)

    clock.advance(9.5)
    assert (deadline.remaining, deadline.expired) == (0.5, False)

    clock.advance(0.5)
    assert (deadline.remaining, deadline.expired) == (0.0, True)

    clock.advance(100)
    assert deadline.remaining == 0.0


def test_naive_datetime_is_rejected_with_a_hint():
    with pytest.raises(ValueError, match="timezone-aware"):
        Deadline(datetime(2030, 1, 1))  # noqa: DTZ001 - that it has no timezone is the point


def test_any_timezone():
    moment = datetime(2030, 1, 1, 12, tzinfo=UTC)
    elsewhere = moment.astimezone(timezone(timedelta(hours=9)))

    assert Deadline(moment) == Deadline(elsewhere)


def test_earlier():
    clock = ManualClock()
    soon, late = Deadline.after(1, clock=clock), Deadline.after(2, clock=clock)

    assert soon.earlier(late) is soon
    assert late.earlier(soon) is soon
    assert late.earlier(None) is late


def test_equality_ignores_the_clock():
    moment = datetime(2030, 1, 1, tzinfo=UTC)

    assert Deadline(moment, ManualClock()) == Deadline(moment, ManualClock())
    assert "clock" not in repr(Deadline(moment))
