from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from antwort.api.obfuscation import obfuscate
from antwort.net.sse import decode_frame, encode_frame


@given(st.text(max_size=40), st.text(max_size=40))
def test_padded_deltas_have_few_lengths_and_the_same_content(one, other):
    first, second = (encode_frame("x.delta", json.dumps({"delta": text}).encode()) for text in (one, other))

    assert len(obfuscate(first)) % 32 == len(obfuscate(second)) % 32 == 0
    event = json.loads(decode_frame(obfuscate(first))[1])
    assert event.pop("obfuscation").isalnum() or len(first) + len(b',"obfuscation":""') == len(obfuscate(first))
    assert event == {"delta": one}


def test_other_events_are_not_padded():
    for kind in ("response.completed", "response.output_text.done", "error"):
        assert obfuscate(encode_frame(kind, b'{"delta":1}')) == encode_frame(kind, b'{"delta":1}')
