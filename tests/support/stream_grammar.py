"""Validator of event streams: order, numbering, ids and texts of the SSE events of a response.

It uses only the sent bytes. Each event type is a letter, and the events of an item must match the regular expression
of its item type.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import Any, TypeAlias

SentEvent: TypeAlias = dict[str, Any]

LETTERS = {
    "output_item.added": "A",
    "output_item.done": "D",
    "content_part.added": "(",
    "content_part.done": ")",
    "output_text.delta": "t",
    "output_text.annotation.added": "n",
    "output_text.done": "T",
    "refusal.delta": "r",
    "refusal.done": "R",
    "reasoning_text.delta": "k",
    "reasoning_text.done": "K",
    "reasoning_summary_part.added": "[",
    "reasoning_summary_part.done": "]",
    "reasoning_summary_text.delta": "s",
    "reasoning_summary_text.done": "S",
    "function_call_arguments.delta": "f",
    "function_call_arguments.done": "F",
    "custom_tool_call_input.delta": "c",
    "custom_tool_call_input.done": "C",
    "compaction.compacting": "x",
    "file_search_call.in_progress": "i",
    "file_search_call.searching": "q",
    "file_search_call.completed": "Q",
}

ITEM_PATTERNS = {
    "message": r"A(\(([tn]+T|r+R)\))*D",
    "reasoning": r"A(\[s+S\]|\(k+K\))*D",
    "function_call": r"Af*FD",
    "custom_tool_call": r"Ac*CD",
    "compaction": r"Ax?D",
    "file_search_call": r"Ai(qQ?)?D",
}

DONE_FIELDS = {
    "output_text": "text",
    "refusal": "refusal",
    "reasoning_text": "text",
    "reasoning_summary_text": "text",
    "function_call_arguments": "arguments",
    "custom_tool_call_input": "input",
}
"""The field of a `done` event that equals the concatenated deltas."""

FINAL_EVENTS = ("response.completed", "response.incomplete", "response.failed")


def read_frames(stream: bytes) -> list[SentEvent]:
    """Parse a stream into events. A frame is an event name and one data line, or a comment."""
    events: list[SentEvent] = []
    assert stream.endswith(b"\n\n")
    for frame in stream.decode().removesuffix("\n\n").split("\n\n"):
        if frame.startswith(":"):
            continue
        name, data = re.fullmatch(r"event: (\S+)\ndata: (\{.*\})", frame).groups()  # pyright: ignore[reportOptionalMemberAccess] - a mismatch fails the test
        events.append(json.loads(data))
        assert events[-1]["type"] == name
    return events


def check_stream(events: list[SentEvent], *, background: bool = False) -> None:
    """Check sequence numbers, first and last events, order, ids and texts."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    opening = ["response.created", *(["response.queued"] if background else []), "response.in_progress"]
    assert kinds[: len(opening)] == opening
    assert all(event["response"]["output"] == [] for event in events[: len(opening)])
    assert [kind for kind in kinds if kind in FINAL_EVENTS] == [kinds[-1]]
    assert {event["response"]["id"] for event in events if "response" in event} == {events[0]["response"]["id"]}
    final = events[-1]["response"]
    items = _events_by_item(events)
    assert list(items) == list(range(len(items)))
    for index, item_events in items.items():
        _check_item(item_events, final["output"][index], is_completed=final["status"] == "completed")
    assert len(final["output"]) == len(items)


def _events_by_item(events: list[SentEvent]) -> dict[int, list[SentEvent]]:
    items: defaultdict[int, list[SentEvent]] = defaultdict(list)
    for event in events:
        if "output_index" in event:
            items[event["output_index"]].append(event)
    return dict(items)


def _check_item(events: list[SentEvent], final: SentEvent, *, is_completed: bool) -> None:
    added = events[0]["item"]
    word = "".join(LETTERS[event["type"].removeprefix("response.")] for event in events)
    ended = word.endswith("D")
    assert ended or not is_completed
    if ended:
        assert re.fullmatch(ITEM_PATTERNS[added["type"]], word), (added["type"], word)
        assert events[-1]["item"] == final
    identity = [(item["type"], item["id"], item.get("call_id")) for item in (added, final)]
    assert identity[0] == identity[1]
    assert {event["item_id"] for event in events if "item_id" in event} <= {added["id"]}
    assert added.get("status", "in_progress") == "in_progress"
    assert final.get("status", "completed") != "in_progress"
    _check_texts(events)


def _check_texts(events: list[SentEvent]) -> None:
    """The deltas of a part add up to its `done` text; a part starts empty."""
    texts: defaultdict[tuple[str, int], str] = defaultdict(str)
    for event in events:
        kind, _, step = event["type"].removeprefix("response.").rpartition(".")
        part = (kind, event.get("content_index", event.get("summary_index", 0)))
        if step == "delta":
            texts[part] += event["delta"]
        elif step == "done" and kind in DONE_FIELDS:
            assert event[DONE_FIELDS[kind]] == texts[part]
        elif step == "added" and "part" in event:
            assert not event["part"].get("text")
            assert not event["part"].get("refusal")
