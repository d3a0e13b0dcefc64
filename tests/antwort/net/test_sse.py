from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.net.errors import EventTooLong
from antwort.net.sse import KEEP_ALIVE, EventReader, ServerEvent, decode_frame, encode_frame


def read(*chunks: bytes, limit: int = 10_000) -> list[ServerEvent]:
    reader = EventReader(limit)
    return [event for chunk in chunks for event in reader.feed(chunk)] + reader.close()


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_line_ending_of_the_standard(end):
    source = end.join([b"event: tick", b"data: 1", b"", b"data:2", b"", b""])

    assert read(source) == [ServerEvent("tick", b"1"), ServerEvent("", b"2")]


def test_comments_and_unknown_fields_are_ignored():
    assert read(b": ping\n\nid: 7\nretry: 10\ndata: 1\nnonsense\n\n: ping\n\n") == [ServerEvent("", b"1")]


def test_data_lines_of_one_event_are_joined():
    assert read(b"data: {\ndata:  1}\n\n") == [ServerEvent("", b"{\n 1}")]


def test_an_event_without_final_line_breaks_is_read():
    assert read(b"data: 1\n\ndata: [DONE]") == [ServerEvent("", b"1"), ServerEvent("", b"[DONE]")]
    assert read(b"data: 1\n") == [ServerEvent("", b"1")]


def test_a_byte_order_mark_and_events_without_data_are_ignored():
    assert read(b"\xef\xbb\xbfdata: 1\n\nevent: alone\n\ndata: 2\n\n") == [
        ServerEvent("", b"1"),
        ServerEvent("", b"2"),
    ]


@pytest.mark.parametrize(
    "chunk", [b"data: " + b"x" * 60, b"data: 123456789\n", b": a comment goes on and on ", b"data:\n" * 3]
)
def test_an_event_above_the_limit_is_an_error(chunk):
    with pytest.raises(EventTooLong):
        read(*[chunk] * 50, limit=100)


def test_the_limit_applies_to_each_event():
    assert len(read(*[b"data: 1234567890\n\n"] * 50, limit=40)) == 50


@given(
    st.lists(st.tuples(st.sampled_from(["", "tick"]), st.text(alphabet="aé🎈 :{}", min_size=1)), max_size=6),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.integers(0, 400)),
)
def test_bytes_may_be_split_anywhere(events, end, cuts):
    source = "".join(
        (f"event: {name}{end}" if name else "") + f"data: {data}{end}: comment{end}{end}" for name, data in events
    ).encode()
    edges = sorted({0, len(source), *(cut for cut in cuts if cut < len(source))})
    chunks = [source[start:stop] for start, stop in itertools.pairwise(edges)]

    assert read(*chunks) == [ServerEvent(name, data.encode()) for name, data in events]


@given(st.sampled_from(["response.output_text.delta", "response.completed"]), st.text())
def test_the_reader_reads_what_the_writer_writes(name, text):
    data = json.dumps({"text": text}).encode()
    frame = encode_frame(name, data)

    assert decode_frame(frame) == (name, data)
    assert read(KEEP_ALIVE + frame + KEEP_ALIVE) == [ServerEvent(name, data)]


def test_the_bytes_of_a_frame():
    assert encode_frame("a", b"{}") == b"event: a\ndata: {}\n\n"
