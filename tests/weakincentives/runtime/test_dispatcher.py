from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest

from weakincentives.runtime.dispatcher import (
    DispatchResult,
    InProcessDispatcher,
    InProcessEventBus,
    NullDispatcher,
    NullEventBus,
)


@dataclass(frozen=True)
class Happened:
    what: str


@dataclass(frozen=True)
class HappenedTwice(Happened):
    pass


def test_subscribers_receive_their_type_and_its_subclasses_in_order():
    received: list[tuple[str, object]] = []
    dispatcher = InProcessDispatcher()
    dispatcher.subscribe(Happened, lambda event: received.append(("first", event)))
    dispatcher.subscribe(object, lambda event: received.append(("all", event)))
    dispatcher.subscribe(HappenedTwice, lambda event: received.append(("narrow", event)))

    event = HappenedTwice("x")
    result = dispatcher.dispatch(event)

    assert received == [("first", event), ("all", event), ("narrow", event)]
    assert result == DispatchResult(event, handled=3)
    assert dispatcher.dispatch(Happened("y")).handled == 2


def test_exception_of_a_subscriber_is_logged_and_returned(caplog: pytest.LogCaptureFixture):
    received: list[object] = []
    dispatcher = InProcessDispatcher()

    def broken(event: object) -> None:
        raise RuntimeError("out of ink")

    dispatcher.subscribe(Happened, broken)
    dispatcher.subscribe(Happened, received.append)
    with caplog.at_level(logging.ERROR):
        result = dispatcher.dispatch(Happened("x"))

    assert received == [Happened("x")]
    assert not result.ok
    assert [str(error) for error in result.errors] == ["out of ink"]
    assert "out of ink" in caplog.text
    with pytest.raises(ExceptionGroup) as caught:
        result.raise_if_errors()
    assert caught.value.exceptions == result.errors


def test_unsubscribe_removes_one_subscription():
    received: list[object] = []
    dispatcher = InProcessDispatcher()
    dispatcher.subscribe(Happened, received.append)
    dispatcher.subscribe(Happened, received.append)

    assert dispatcher.unsubscribe(Happened, received.append)
    dispatcher.dispatch(Happened("x"))
    assert received == [Happened("x")]
    assert dispatcher.unsubscribe(Happened, received.append)
    assert not dispatcher.unsubscribe(Happened, received.append)
    dispatcher.dispatch(Happened("y")).raise_if_errors()
    assert received == [Happened("x")]


def test_publish_and_event_bus_are_aliases():
    received: list[object] = []
    bus = InProcessEventBus()
    bus.subscribe(Happened, received.append)

    assert bus.publish(Happened("x")).handled == 1
    assert isinstance(bus, InProcessDispatcher)
    assert NullEventBus is NullDispatcher


def test_null_dispatcher_discards_events():
    received: list[object] = []
    dispatcher = NullDispatcher()
    dispatcher.subscribe(Happened, received.append)

    assert dispatcher.publish(Happened("x")) == DispatchResult(Happened("x"))
    assert not dispatcher.unsubscribe(Happened, received.append)
    assert received == []
