"""Obfuscation of streamed deltas: pads SSE frames to few lengths, so that an observer of lengths learns no words."""

from __future__ import annotations

import secrets

_STEP = 32
_NOISE = secrets.token_hex(_STEP).encode()
_EMPTY_FIELD = len(b',"obfuscation":""')
_NOT_PADDED = b".shell_call_output_content.delta"  # its delta is an object; OpenAI does not pad it
_END = b"}\n\n"


def obfuscate(frame: bytes) -> bytes:
    """Add an `obfuscation` field to the frame of a delta, so that its length is a multiple of 32; keep other frames.

    The content of the padding is irrelevant, so every frame uses parts of the same random text.
    """
    name = frame[: frame.find(b"\n")]
    if not name.endswith(b".delta") or name.endswith(_NOT_PADDED):
        return frame
    return pad(frame.removesuffix(_END)) + _END


def pad(frame: bytes) -> bytes:
    """A frame, without the brace and line breaks of its end, with the field."""
    padding = _NOISE[: -(len(frame) + _EMPTY_FIELD + len(_END)) % _STEP]
    return frame + b',"obfuscation":"' + padding + b'"'
