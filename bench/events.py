"""How long a session takes to hear of many events."""

from __future__ import annotations

from dataclasses import dataclass

from readings import Row, Suite, timed

from weakincentives.runtime import Replace, Session, SliceOp, SliceView

EVENTS = 10_000
TARGET = 0.1


@dataclass(frozen=True)
class Spent:
    """Something that happens often."""

    amount: int


@dataclass(frozen=True)
class Account:
    """What a reducer makes of it."""

    events: int = 0
    total: int = 0


def suite() -> Suite:
    """A fresh session each time. Making the events counts too."""
    return Suite(
        [
            Row(f"{EVENTS:,} events, with a reducer", timed(reduced, times=15), target=TARGET),
            Row(f"{EVENTS:,} events, default append", timed(appended, times=15), target=TARGET),
        ]
    )


def reduced() -> None:
    """Each event changes a running total."""
    session = Session()
    session[Account].register(Spent, add)
    for amount in range(EVENTS):
        session.dispatch(Spent(amount))
    if session[Account].latest() != Account(EVENTS, sum(range(EVENTS))):
        raise RuntimeError("the total is wrong")


def add(view: SliceView[Account], event: Spent) -> SliceOp:
    """One more."""
    before = view.latest() or Account()
    return Replace((Account(before.events + 1, before.total + event.amount),))


def appended() -> None:
    """Each event is kept."""
    session = Session()
    for amount in range(EVENTS):
        session.dispatch(Spent(amount))
    if len(session[Spent]) != EVENTS:
        raise RuntimeError("an event is missing")
