"""Of a text that is too long, its two ends: enough to see what it was, and no more than a model can read. Pure."""

from __future__ import annotations

from typing import Final

MODEL_READS: Final = 50_000
"""Characters of a tool's output that a model is shown. The caller gets the rest, where that was asked for."""


def excerpt(text: str, most: int = MODEL_READS) -> str:
    """The text, or its beginning and its end with a mark of what is missing between them."""
    if len(text) <= most:
        return text
    head = most // 2
    tail = most - head
    return f"{text[:head]}\n[... {len(text) - most} characters cut ...]\n{text[-tail:] if tail else ''}"


def fitting(text: str, most: int) -> str:
    """The same, counted in bytes of UTF-8; a character is never cut in two."""
    raw = text.encode()
    if len(raw) <= most:
        return text
    head = most // 2
    tail = most - head
    end = raw[-tail:].decode(errors="ignore") if tail else ""
    return f"{raw[:head].decode(errors='ignore')}\n[... {len(raw) - most} bytes cut ...]\n{end}"
