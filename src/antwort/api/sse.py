"""Server-sent events, as bytes. Never with `id:` lines: with keep-alive comments they break the SDK's decoder."""

from __future__ import annotations

KEEP_ALIVE = b": keep-alive\n\n"


def frame(kind: str, data: bytes) -> bytes:
    """One event. `data` is JSON, which has no line breaks, so that one data line holds it."""
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"
