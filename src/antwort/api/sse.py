"""Server-sent events, as bytes. Never with `id:` lines: with keep-alive comments they break the SDK's decoder."""

from __future__ import annotations

import secrets

KEEP_ALIVE = b": keep-alive\n\n"

_STEP = 32
_NOISE = secrets.token_hex(_STEP).encode()
_EMPTY = len(b',"obfuscation":""')
_EVENT, _DATA, _END = b"event: ", b"\ndata: ", b"}\n\n"


def frame(kind: str, data: bytes) -> bytes:
    """One event. `data` is JSON, which has no line breaks, so that one data line holds it."""
    return _EVENT + kind.encode() + _DATA + data + b"\n\n"


def opened(sent: bytes) -> tuple[str, bytes]:
    """What a frame of ours is made of: its kind and its data."""
    kind, _, data = sent.removeprefix(_EVENT).partition(_DATA)
    return kind.decode(), data.removesuffix(b"\n\n")


def obfuscated(sent: bytes) -> bytes:
    """The frame of a delta, padded to one of few lengths: who sees only lengths then cannot guess at words.

    Every other frame stays as it is. What the padding says does not matter, so it is not made anew each time.
    """
    if not sent[: sent.find(b"\n")].endswith(b".delta"):
        return sent
    padding = _NOISE[: -(len(sent) + _EMPTY) % _STEP]
    return sent.removesuffix(_END) + b',"obfuscation":"' + padding + b'"' + _END
