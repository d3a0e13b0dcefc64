"""Truncation: of a text to its head and tail, and of a history to its newest items. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from antwort.api.items import GivenMessage, Item
from antwort.api.token_estimate import estimate_text

MAX_MODEL_CHARS: Final = 50_000
"""Characters of a tool's output that a model is shown. The client gets the rest, if it asked for it."""

CONTEXT_LENGTH_EXCEEDED: Final = "context_length_exceeded"
"""The code of a `ModelFault` for a history that is too long."""


def truncate_chars(text: str, limit: int = MAX_MODEL_CHARS) -> str:
    """The text, or its head and tail with a mark that says how many characters were cut."""
    if len(text) <= limit:
        return text
    head = limit // 2
    tail = limit - head
    return f"{text[:head]}\n[... {len(text) - limit} characters cut ...]\n{text[-tail:] if tail else ''}"


def truncate_bytes(text: str, limit: int) -> str:
    """The same, counted in bytes of UTF-8; no character is split."""
    raw = text.encode()
    if len(raw) <= limit:
        return text
    head = limit // 2
    tail = limit - head
    end = raw[-tail:].decode(errors="ignore") if tail else ""
    return f"{raw[:head].decode(errors='ignore')}\n[... {len(raw) - limit} bytes cut ...]\n{end}"


def truncate_tokens(text: str, limit: int) -> str:
    """The same, counted in estimated tokens. The mark costs about ten."""
    tokens = estimate_text(text)
    if tokens <= limit:
        return text
    chars, cut = max(0, len(text) * limit // tokens), ""
    while chars:
        cut = truncate_chars(text, chars)
        if estimate_text(cut) <= limit:
            return cut
        chars = chars * 3 // 4
    return truncate_chars(text, 0)


def truncate_history(history: Sequence[Item]) -> list[Item] | None:
    """`truncation: "auto"`: the history without the older half of what may be dropped; None if nothing may.

    System and developer messages and compaction items stay, and so does everything from the last user message on.
    """
    last = max((index for index, item in enumerate(history) if _role(item) == "user"), default=len(history) - 1)
    droppable = [index for index, item in enumerate(history[:last]) if not _is_kept(item)]
    if not droppable:
        return None
    dropped = set(droppable[: (len(droppable) + 1) // 2])
    rest = [item for index, item in enumerate(history) if index not in dropped]
    called = {item.call_id for item in rest if not item.type.endswith("_output")}
    # Many models reject an output without its call.
    return [item for item in rest if not item.type.endswith("_output") or item.call_id in called]


def _is_kept(item: Item) -> bool:
    return _role(item) in ("system", "developer") or item.type == "compaction"


def _role(item: Item) -> str | None:
    return item.known.role if isinstance(item.known, GivenMessage) else None
