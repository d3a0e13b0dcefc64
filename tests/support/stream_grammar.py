"""Grammar of event streams for tests of this server: the rules of `antwort.conformance`, without any further key."""

from __future__ import annotations

from collections.abc import Sequence

from antwort.conformance import grammar
from antwort.conformance.grammar import EVENTS, FINAL_EVENTS, ITEMS, RESPONSE_KEYS, SentEvent, read_frames

__all__ = ["EVENTS", "FINAL_EVENTS", "ITEMS", "RESPONSE_KEYS", "SentEvent", "check_stream", "read_frames"]


def check_stream(
    events: Sequence[SentEvent], *, background: bool = False, obfuscated: bool = True, is_continued: bool = False
) -> None:
    """Check sequence numbers, first and last events, order, keys, ids, statuses and texts.

    The numbers of a response that was continued after a crash grow, and may have gaps.
    """
    grammar.check_stream(events, background=background, obfuscated=obfuscated, is_continued=is_continued, strict=True)
