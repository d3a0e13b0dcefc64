from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from antwort.api.sse import KEEP_ALIVE, frame, obfuscated, opened


def test_keep_alives_are_comments():
    assert KEEP_ALIVE.startswith(b":")
    assert frame("a", b"{}") == b"event: a\ndata: {}\n\n"


@given(st.text(), st.sampled_from(["response.output_text.delta", "response.completed"]))
def test_a_frame_can_be_opened_again(text, kind):
    data = json.dumps({"text": text}).encode()

    assert opened(frame(kind, data)) == (kind, data)


@given(st.text(max_size=40), st.text(max_size=40))
def test_padded_deltas_have_few_lengths_and_say_the_same(one, other):
    first, second = (frame("x.delta", json.dumps({"delta": text}).encode()) for text in (one, other))

    assert len(obfuscated(first)) % 32 == len(obfuscated(second)) % 32 == 0
    told = json.loads(opened(obfuscated(first))[1])
    assert told.pop("obfuscation").isalnum() or len(first) + len(b',"obfuscation":""') == len(obfuscated(first))
    assert told == {"delta": one}


def test_what_is_no_delta_is_not_padded():
    for kind in ("response.completed", "response.output_text.done", "error"):
        assert obfuscated(frame(kind, b'{"delta":1}')) == frame(kind, b'{"delta":1}')
