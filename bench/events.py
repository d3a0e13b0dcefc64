"""Benchmark: dispatch of many events to a session."""

from __future__ import annotations

from dataclasses import dataclass

from measurements import Row, Suite, measure

from weakincentives.runtime import Replace, Session, SliceOp, SliceView

EVENTS = 10_000
TARGET = 0.1


@dataclass(frozen=True)
class Spent:
    """An event."""

    amount: int


@dataclass(frozen=True)
class Account:
    """The state that the reducer computes."""

    events: int = 0
    total: int = 0


def suite() -> Suite:
    """A new session per round. The time includes the construction of the events."""
    return Suite(
        [
            Row(f"{EVENTS:,} events, with a reducer", measure(dispatch_with_reducer, times=15), target=TARGET),
            Row(f"{EVENTS:,} events, default append", measure(dispatch_with_append, times=15), target=TARGET),
        ]
    )


def dispatch_with_reducer() -> None:
    """A reducer keeps a running total."""
    session = Session()
    session[Account].register(Spent, add)
    for amount in range(EVENTS):
        session.dispatch(Spent(amount))
    if session[Account].latest() != Account(EVENTS, sum(range(EVENTS))):
        raise RuntimeError("wrong total")


def add(view: SliceView[Account], event: Spent) -> SliceOp:
    """Add one event."""
    before = view.latest() or Account()
    return Replace((Account(before.events + 1, before.total + event.amount),))


def dispatch_with_append() -> None:
    """Each event is appended to its slice."""
    session = Session()
    for amount in range(EVENTS):
        session.dispatch(Spent(amount))
    if len(session[Spent]) != EVENTS:
        raise RuntimeError("an event is missing")
