"""Grammar of event streams: one table of rules per item type, and the functions that check a stream against them."""

from __future__ import annotations

from antwort.conformance.grammar.frames import read_frames
from antwort.conformance.grammar.items import check_item_keys, check_part_keys, check_response_keys
from antwort.conformance.grammar.rules import (
    EVENTS,
    FINAL_EVENTS,
    ITEMS,
    RESPONSE_KEYS,
    EventRule,
    ItemRule,
    SentEvent,
)
from antwort.conformance.grammar.stream import check_fold, check_grammar, check_sequence, check_stream
from antwort.conformance.grammar.violation import Violation, require, require_equal

__all__ = [
    "EVENTS",
    "FINAL_EVENTS",
    "ITEMS",
    "RESPONSE_KEYS",
    "EventRule",
    "ItemRule",
    "SentEvent",
    "Violation",
    "check_fold",
    "check_grammar",
    "check_item_keys",
    "check_part_keys",
    "check_response_keys",
    "check_sequence",
    "check_stream",
    "read_frames",
    "require",
    "require_equal",
]
