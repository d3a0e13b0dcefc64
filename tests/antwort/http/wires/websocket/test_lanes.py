from __future__ import annotations

from collections import defaultdict, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.errors import ApiError
from antwort.http.wires.websocket.lanes import MAX_LANES, MAX_WAITING, Lanes
from antwort.http.wires.websocket.messages import ClientMessage

LANES = st.sampled_from([None, "a", "b"])


def refusal(lanes: Lanes, message: ClientMessage) -> str | None:
    """The code of the error; None if the message is taken."""
    try:
        lanes.add(message)
    except ApiError as error:
        return error.code
    return None


@given(st.lists(st.tuples(st.booleans(), LANES, st.binary(max_size=8))))
def test_each_lane_is_a_queue_and_all_together_are_limited(steps):
    lanes, expected = Lanes(20), defaultdict[str | None, deque[ClientMessage]](deque)
    for is_added, lane, body in steps:
        waiting = [message for queue in expected.values() for message in queue]
        if is_added:
            message = ClientMessage(body, lane)
            fits = not waiting or sum(len(one.body) for one in waiting) + len(body) <= 20
            full = len(waiting) >= MAX_WAITING
            assert refusal(lanes, message) == (None if fits and not full else "websocket_queue_full")
            if fits and not full:
                expected[lane].append(message)
        elif expected[lane]:
            assert lanes.has_next(lane)
            assert lanes.take(lane) is expected[lane].popleft()
            assert lanes.has_next(lane) == bool(expected[lane])


def test_named_lanes_are_limited_and_the_default_lane_is_not_counted():
    lanes = Lanes(1000)
    for number in range(MAX_LANES):
        lanes.add(ClientMessage(b"", str(number)))
    lanes.add(ClientMessage(b"", None))
    assert refusal(lanes, ClientMessage(b"", "another")) == "websocket_stream_limit_reached"
    assert refusal(lanes, ClientMessage(b"", "0")) is None


def test_a_message_larger_than_the_limit_is_taken_if_none_waits():
    lanes = Lanes(3)
    lanes.add(ClientMessage(b"12345", None))
    assert refusal(lanes, ClientMessage(b"", "a")) == "websocket_queue_full"
    lanes.take(None)
    lanes.add(ClientMessage(b"", "a"))


def test_the_number_of_waiting_messages_is_limited():
    lanes = Lanes(1000)
    for _ in range(MAX_WAITING):
        lanes.add(ClientMessage(b"", None))
    with pytest.raises(ApiError) as refused:
        lanes.add(ClientMessage(b"", None))
    assert (refused.value.status, refused.value.code) == (429, "websocket_queue_full")
