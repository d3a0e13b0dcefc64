"""Capture: streams separate and interleaved, truncated to head and tail."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antwort.sandbox.container.capture import Capture, cut_marker


def test_streams_are_separate_and_interleaved_in_order():
    capture = Capture(1000)
    capture.feed("stdout", b"a")
    capture.feed("stderr", b"b")
    capture.feed("stdout", b"c")
    capture.feed("stdout", b"d")
    assert (capture.text("stdout"), capture.text("stderr")) == ("acd", "b")
    assert capture.interleaved() == [("stdout", "a"), ("stderr", "b"), ("stdout", "cd")]


def test_head_and_tail_are_kept_with_a_cut_marker():
    capture = Capture(200)
    capture.feed("stdout", b"h" * 100 + b"m" * 1000)
    capture.feed("stdout", b"t" * 100)
    assert capture.text("stdout") == "h" * 100 + cut_marker(1000) + "t" * 100


@given(st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(max_size=300)), max_size=60))
def test_output_below_the_limit_is_complete(writes):
    capture = Capture(400)
    live = {"stdout": "", "stderr": ""}
    for name, data in writes:
        live[name] += capture.feed(name, data)
    for name in ("stdout", "stderr"):
        whole = b"".join(data for stream, data in writes if stream == name)
        kept = capture.text(name)
        assert len(kept) <= 400 + 100
        if not capture.cut_bytes:
            assert kept == whole.decode(errors="replace")


def test_a_character_split_between_two_reads_is_decoded_once_complete():
    capture = Capture(1000)
    assert capture.feed("stdout", "é".encode()[:1]) + capture.feed("stdout", "é".encode()[1:]) == "é"
    assert capture.unsent("stdout") == ""


def test_a_flood_of_single_bytes_stays_within_the_limit():
    capture = Capture(6400)
    for _ in range(10_000):
        capture.feed("stdout", b"o")
        capture.feed("stderr", b"e")
    kept = [chunk for stream in capture._streams.values() for chunk in (*stream.head, *stream.tail)]
    assert len(kept) <= 2 * 6400 / 64 + 4
    assert capture.cut_bytes + sum(len(chunk.data) for chunk in kept) == 20_000


@given(st.lists(st.binary(min_size=1, max_size=500), max_size=40), st.integers(2, 600))
def test_every_cut_byte_is_counted(writes, limit):
    capture = Capture(limit)
    for data in writes:
        capture.feed("stdout", data)
    stream = capture._streams["stdout"]
    kept = b"".join(bytes(chunk.data) for chunk in (*stream.head, *stream.tail))
    whole = b"".join(writes)
    assert len(kept) + capture.cut_bytes == len(whole)
    head = b"".join(bytes(chunk.data) for chunk in stream.head)
    assert whole.startswith(head)
    assert whole.endswith(kept[len(head) :])
