"""Output is kept apart, in order, and within its cap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antwort.sandbox.capture import Capture, mark


def test_both_streams_are_kept_apart_and_in_order():
    capture = Capture(1000)
    for name, data in (("stdout", b"a"), ("stderr", b"b"), ("stdout", b"c"), ("stdout", b"d")):
        capture.feed(name, data)
    assert (capture.text("stdout"), capture.text("stderr")) == ("acd", "b")
    assert capture.interleaved() == [("stdout", "a"), ("stderr", "b"), ("stdout", "cd")]


def test_head_and_tail_are_kept_and_the_cut_is_marked():
    capture = Capture(200)
    capture.feed("stdout", b"h" * 100 + b"m" * 1000)
    capture.feed("stdout", b"t" * 100)
    assert capture.text("stdout") == "h" * 100 + mark(1000) + "t" * 100


@given(st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(max_size=300)), max_size=60))
def test_what_is_shown_live_and_the_rest_make_the_whole(writes):
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


def test_a_character_split_between_two_reads_is_shown_whole():
    capture = Capture(1000)
    assert capture.feed("stdout", "é".encode()[:1]) + capture.feed("stdout", "é".encode()[1:]) == "é"
    assert capture.rest("stdout") == ""
