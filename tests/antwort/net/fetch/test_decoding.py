from __future__ import annotations

import gzip
import zlib

import pytest

from antwort.net.fetch.decoding import BodyDecoder, BodyTooLarge, UndecodableBody

TEXT = b"tea " * 1000
RAW = zlib.compressobj(wbits=-zlib.MAX_WBITS)
BODIES = {
    "": TEXT,
    "identity": TEXT,
    "gzip": gzip.compress(TEXT),
    "X-GZIP": gzip.compress(TEXT),
    "deflate": zlib.compress(TEXT),
    " Deflate ": RAW.compress(TEXT) + RAW.flush(),
}


def decode(encoding: str, body: bytes, *, limit: int = 10_000, size: int = 7) -> bytes:
    decoder = BodyDecoder(encoding, limit)
    for at in range(0, len(body), size):
        decoder.feed(body[at : at + size])
    return decoder.finish()


@pytest.mark.parametrize("encoding", BODIES)
@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_bodies_are_decoded_chunk_by_chunk(encoding, size):
    assert decode(encoding, BODIES[encoding], size=size) == TEXT
    assert decode(encoding, b"") == b""


@pytest.mark.parametrize("encoding", BODIES)
def test_the_limit_applies_to_the_decoded_body(encoding):
    assert decode(encoding, BODIES[encoding], limit=len(TEXT)) == TEXT
    with pytest.raises(BodyTooLarge):
        decode(encoding, BODIES[encoding], limit=len(TEXT) - 1)


def test_a_bomb_is_never_decompressed():
    bomb = gzip.compress(gzip.compress(b"\0" * 50_000_000))
    decoder = BodyDecoder("gzip", 1000)

    with pytest.raises(BodyTooLarge):
        decoder.feed(gzip.compress(b"\0" * 50_000_000))
    assert len(decoder._body) <= 1001
    assert decode("gzip", bomb, limit=100_000)[:2] == b"\x1f\x8b"  # one encoding only


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "compress", "x" * 1000])
def test_other_encodings_are_refused(encoding):
    with pytest.raises(UndecodableBody, match="not supported"):
        BodyDecoder(encoding, 10)


@pytest.mark.parametrize("body", [b"plain", BODIES["gzip"][:-5], b"\x1f\x8b\x08"], ids=["plain", "cut", "head"])
def test_invalid_and_incomplete_bodies_are_refused(body):
    with pytest.raises(UndecodableBody):
        decode("gzip", body)


def test_what_follows_the_compressed_body_is_dropped():
    assert decode("gzip", BODIES["gzip"] + b"more") == TEXT
