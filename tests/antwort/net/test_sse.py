from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.net.sse import EventReader, EventTooLong, ServerEvent


def read(*chunks: bytes, limit: int = 10_000) -> list[ServerEvent]:
    reader = EventReader(limit)
    return [event for chunk in chunks for event in reader.feed(chunk)] + reader.close()


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_each_of_the_line_ends(end):
    source = end.join([b"event: tick", b"data: 1", b"", b"data:2", b"", b""])

    assert read(source) == [ServerEvent("tick", b"1"), ServerEvent("", b"2")]


def test_comments_and_other_fields_are_passed_over():
    assert read(b": ping\n\nid: 7\nretry: 10\ndata: 1\nnonsense\n\n: ping\n\n") == [ServerEvent("", b"1")]


def test_several_data_lines_are_one_datum():
    assert read(b"data: {\ndata:  1}\n\n") == [ServerEvent("", b"{\n 1}")]


def test_an_event_without_its_last_line_breaks_still_counts():
    assert read(b"data: 1\n\ndata: [DONE]") == [ServerEvent("", b"1"), ServerEvent("", b"[DONE]")]
    assert read(b"data: 1\n") == [ServerEvent("", b"1")]


def test_a_byte_order_mark_and_an_event_without_data():
    assert read(b"\xef\xbb\xbfdata: 1\n\nevent: alone\n\ndata: 2\n\n") == [
        ServerEvent("", b"1"),
        ServerEvent("", b"2"),
    ]


@pytest.mark.parametrize(
    "chunk", [b"data: " + b"x" * 60, b"data: 123456789\n", b": a comment goes on and on ", b"data:\n" * 3]
)
def test_an_event_that_never_ends_is_an_error(chunk):
    with pytest.raises(EventTooLong):
        read(*[chunk] * 50, limit=100)


def test_many_small_events_are_no_long_one():
    assert len(read(*[b"data: 1234567890\n\n"] * 50, limit=40)) == 50


@given(
    st.lists(st.tuples(st.sampled_from(["", "tick"]), st.text(alphabet="aé🎈 :{}", min_size=1)), max_size=6),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.integers(0, 400)),
)
def test_where_the_bytes_are_cut_does_not_matter(events, end, cuts):
    source = "".join(
        (f"event: {name}{end}" if name else "") + f"data: {data}{end}: comment{end}{end}" for name, data in events
    ).encode()
    edges = sorted({0, len(source), *(cut for cut in cuts if cut < len(source))})
    chunks = [source[start:stop] for start, stop in itertools.pairwise(edges)]

    assert read(*chunks) == [ServerEvent(name, data.encode()) for name, data in events]
