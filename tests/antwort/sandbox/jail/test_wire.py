"""Frame codec: frames split anywhere are decoded, and invalid ones are refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.sandbox.jail import wire

INVALID_HEADERS = [b"[]", b"{}", b"\xff", b'{"blobs": 1}', b'{"blobs": [1]}', b'{"blobs": [-1]}', b'{"blobs": ["x"]}']


@given(st.lists(st.binary(max_size=50), max_size=5), st.integers(1, 40))
def test_a_frame_split_anywhere_is_decoded(blobs, step):
    data = wire.encode({"a": "ä"}, tuple(blobs)) * 2
    decoder = wire.Decoder()
    frames = [frame for i in range(0, len(data), step) for frame in decoder.feed(data[i : i + step])]
    assert [(header["a"], found) for header, found in frames] == [("ä", blobs)] * 2


@pytest.mark.parametrize("head", [*INVALID_HEADERS, b"[" * 99_999])
def test_an_invalid_frame_is_refused(head):
    with pytest.raises(wire.InvalidFrame):
        wire.Decoder().feed(struct.pack(">II", len(head), 0) + head)


@pytest.mark.parametrize("head, body", [(2**32 - 1, 0), (0, 2**32 - 1), (101, 0), (100, (32 << 20) + 1)])
def test_an_oversized_frame_is_refused_before_it_is_buffered(head, body):
    with pytest.raises(wire.InvalidFrame, match="too large"):
        wire.Decoder(100).feed(struct.pack(">II", head, body))
