"""Checks an event stream: sequence numbers, order, keys, ids, statuses, and that the final response equals it. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from antwort.conformance.grammar.items import check_item_keys, check_part_keys, check_response_keys
from antwort.conformance.grammar.rules import (
    DONE_FIELDS,
    EVENTS,
    FINAL_EVENTS,
    ITEMS,
    RESPONSE_STATUSES,
    WRITTEN_INSIDE,
    EventRule,
    SentEvent,
)
from antwort.conformance.grammar.violation import Violation, require, require_equal, require_keys

_UNKNOWN = EventRule("?", frozenset())
_OPENING_EVENTS = ("response.created", "response.queued", "response.in_progress")
_NONE: frozenset[str] = frozenset()
_PADDING = frozenset(("obfuscation",))
_ERROR_KEYS = frozenset(("type", "code", "message", "param"))


def check_stream(
    events: Sequence[SentEvent],
    *,
    background: bool = False,
    obfuscated: bool = True,
    is_continued: bool = False,
    strict: bool = False,
) -> None:
    """All checks of a whole stream, in this order: numbers, grammar, fold."""
    check_sequence(events, is_continued=is_continued)
    check_grammar(events, background=background, obfuscated=obfuscated, strict=strict)
    check_fold(events)


def check_sequence(events: Sequence[SentEvent], *, is_continued: bool = False, first: int = 0) -> None:
    """Sequence numbers rise by one from `first`. Those of a response that continues after a crash may have gaps."""
    numbers = [event.get("sequence_number") for event in events]
    if is_continued:
        pairs = pairwise(numbers)
        require(all(a is not None and b is not None and a < b for a, b in pairs), "sequence numbers rise", numbers)
        return
    for expected, (number, event) in enumerate(zip(numbers, events, strict=True), first):
        require(number == expected, f"sequence_number {expected} at `{event.get('type')}`", number)


# ── grammar ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_grammar(
    events: Sequence[SentEvent], *, background: bool = False, obfuscated: bool = True, strict: bool = False
) -> None:
    """First and last events, the keys of each event, the order of items and of the events in them, and their ids."""
    require(events, "a stream has events")
    for event in events:
        _check_event(event, obfuscated=obfuscated, strict=strict)
    _check_frame(events, background=background)
    _check_nesting(events)
    final = events[-1]["response"]
    by_item = _events_by_item(events)
    require_equal(list(by_item), list(range(len(by_item))), "output_index counts the items")
    if final["status"] != "completed" and by_item and _is_unwritten(events):
        by_item.popitem()
    for index, item_events in by_item.items():
        require(index < len(final["output"]), f"the final response has the item {index}", len(final["output"]))
        _check_item(item_events, final["output"][index], is_completed=final["status"] == "completed", strict=strict)


def _check_frame(events: Sequence[SentEvent], *, background: bool) -> None:
    """What a stream begins and ends with."""
    kinds = [event.get("type") for event in events]
    opening = ["response.created", *(["response.queued"] if background else []), "response.in_progress"]
    require_equal(kinds[: len(opening)], opening, "the first events")
    for event in events[: len(opening)]:
        require(event["response"]["output"] == [], f"`output` is empty in {event['type']}", event["response"]["output"])
    require_equal([kind for kind in kinds if kind in FINAL_EVENTS], [kinds[-1]], "one final event, at the end")
    again = [kind for kind in kinds[len(opening) :] if kind in _OPENING_EVENTS]
    require(not again, "response.created, .queued and .in_progress at the beginning only", again)
    errors = [at for at, kind in enumerate(kinds, 2) if kind == "error"]
    require(errors in ([], [len(kinds)]), "`error` comes directly before the final event", kinds[-3:])
    ids = {event["response"].get("id") for event in events if "response" in event}
    require(len(ids) == 1, "one response id in all events", ids)


def _check_event(event: SentEvent, *, obfuscated: bool, strict: bool) -> None:
    """The keys of an event and of what it carries; `obfuscation` in deltas only."""
    kind = event["type"]
    rule = EVENTS.get(kind.removeprefix("response."))
    if rule is None:
        require(not strict, "a known event type", kind)
        return
    allowed = rule.optional_keys | (_PADDING if rule.is_padded else _NONE)
    require_keys(
        event, rule.keys | {"type", "sequence_number"}, f"the event {kind}", allowed=allowed if strict else None
    )
    if strict and rule.is_padded:
        require(("obfuscation" in event) == obfuscated, f"obfuscation in {kind} only if it is on", event)
    require(obfuscated or "obfuscation" not in event, f"no obfuscation in {kind}, which is switched off", event)
    if "response" in event:
        check_response_keys(event["response"], strict=strict)
        status = event["response"]["status"]
        require(status in RESPONSE_STATUSES[kind], f"a status of {set(RESPONSE_STATUSES[kind])} in {kind}", status)
    if kind == "error":
        require_keys(event["error"], _ERROR_KEYS, "`error`", allowed=frozenset() if strict else None)
    if "item" in event:
        check_item_keys(event["item"], is_done=kind == "response.output_item.done", strict=strict)
    for name in ("part", "annotation"):
        if name in event:
            check_part_keys(event[name], strict=strict)


def _check_nesting(events: Sequence[SentEvent]) -> None:
    """An item is done before the next one is added, and has all its events in between."""
    current: int | None = None
    for event in events:
        if "output_index" not in event:
            continue
        index, kind = event["output_index"], event["type"]
        if kind == "response.output_item.added":
            require(current is None, f"item {current} is done before the next one is added", event)
            current = index
        require(index == current, f"{kind} belongs to the item that was added last ({current})", event)
        if kind == "response.output_item.done":
            current = None


def _events_by_item(events: Sequence[SentEvent]) -> dict[int, list[SentEvent]]:
    items: defaultdict[int, list[SentEvent]] = defaultdict(list)
    for event in events:
        if "output_index" in event:
            items[event["output_index"]].append(event)
    return dict(items)


def _is_unwritten(events: Sequence[SentEvent]) -> bool:
    """Whether the last item is a compaction whose summary was not written: it is not part of the response."""
    last = [event for event in events if "item" in event][-1]
    return last["type"] == "response.output_item.added" and last["item"]["type"] == "compaction"


def _check_item(events: list[SentEvent], final: Any, *, is_completed: bool, strict: bool) -> None:
    """The events of one item: their order, the same identity in all of them, and the statuses."""
    require(events[0]["type"] == "response.output_item.added", "an item begins with output_item.added", events[0])
    added = events[0]["item"]
    kind = added["type"]
    ends = [final, *([events[-1]["item"]] if "item" in events[-1] else [])]
    for end in ends:
        for key in ("type", "id", "call_id"):
            require_equal(end.get(key), added.get(key), f"`{key}` of the {kind}, as when it was added")
    for event in events:
        require(event.get("item_id", added["id"]) == added["id"], f"item_id {added['id']} in {event['type']}", event)
    rule = ITEMS.get(kind)
    if rule is None:
        return
    status = added.get("status") or rule.initial_status
    require(status == rule.initial_status, f"the status {rule.initial_status} of an added {kind}", status)
    for key in rule.empty_keys:
        require(not added.get(key), f"`{key}` is empty when a {kind} is added", added)
    where, key = WRITTEN_INSIDE.get(kind, ("", ""))
    inside: Any = added.get(where) or {}
    require(not inside.get(key), f"`{where}.{key}` is empty when a {kind} is added", added)
    is_ended = events[-1]["type"] == "response.output_item.done"
    require(is_ended or not is_completed, f"the {kind} ends with output_item.done", events[-1])
    if is_ended:
        _check_end(events, final, strict=strict)
    require(not (is_completed and final.get("status") == "incomplete"), "no incomplete item if completed", final)


def _check_end(events: list[SentEvent], final: Any, *, strict: bool) -> None:
    kind = events[0]["item"]["type"]
    rule = ITEMS[kind]
    word = "".join(EVENTS.get(event["type"].removeprefix("response."), _UNKNOWN).letter for event in events)
    if not strict:
        word = word.replace(_UNKNOWN.letter, "")
    status = final.get("status") or "completed"
    order = (rule.interrupted_order if status != "completed" else "") or rule.order
    if re.fullmatch(order, word) is None:
        raise Violation(f"the events of a {kind} in the order {_spell(order)}", [event["type"] for event in events])
    if kind == "apply_patch_call" and status == "completed":
        has_diff = "diff" in (final.get("operation") or ())
        require(("G" in word) == has_diff, f"diff events of an {kind} if and only if its operation has a diff", final)
    missing = set(events[0]["item"]) - set(final)
    require(not missing, f"the ended {kind} has the keys of the added one: {missing}", final)
    require(status in rule.statuses, f"the status of an ended {kind} is one of {set(rule.statuses)}", status)


def _spell(order: str) -> str:
    """A regular expression of letters with the names of the events."""
    names = {rule.letter: name for name, rule in EVENTS.items() if rule.letter}
    plain = order.replace(r"\(", "\1").replace(r"\)", "\2").replace(r"\[", "\3").replace(r"\]", "\4")
    literal = {"\1": "(", "\2": ")", "\3": "[", "\4": "]"}
    spelled = (f" {names.get(literal.get(one, one), '')} " if one in literal or one.isalpha() else one for one in plain)
    return " ".join("".join(spelled).split())


# ── fold ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_fold(events: Sequence[SentEvent]) -> None:
    """The final response has the items of the events, and the deltas of a part add up to its text."""
    final = events[-1]["response"]
    by_item = _events_by_item(events)
    if final["status"] != "completed" and by_item and _is_unwritten(events):
        by_item.popitem()
    require_equal(len(final["output"]), len(by_item), "the number of items in the final response")
    for index, item_events in by_item.items():
        _check_texts(item_events)
        _check_annotations(item_events, final["output"][index])
        if item_events[-1]["type"] == "response.output_item.done":
            done = _without_ciphertext(item_events[-1]["item"])
            require_equal(_without_ciphertext(final["output"][index]), done, f"item {index} of the final response")


def _without_ciphertext(item: dict[str, Any]) -> dict[str, Any]:
    """An item without what is encrypted again each time."""
    return {key: value for key, value in item.items() if key != "encrypted_content"}


def _check_texts(events: list[SentEvent]) -> None:
    """The deltas of a part add up to its `done` text; a part starts empty."""
    texts: defaultdict[tuple[str, int], str] = defaultdict(str)
    outputs: list[Any] = []
    for event in events:
        kind, _, step = event["type"].removeprefix("response.").rpartition(".")
        at = event.get("content_index", event.get("summary_index", event.get("command_index", 0)))
        if step == "delta" and isinstance(event.get("delta"), str):
            texts[kind, at] += event["delta"]
        elif step == "done" and kind in DONE_FIELDS:
            require_equal(event[DONE_FIELDS[kind]], texts[kind, at], f"the deltas of {kind} add up to its text")
        elif step == "done" and kind == "shell_call_output_content":
            outputs += event["output"]
        elif step == "added" and "part" in event:
            is_empty = not event["part"].get("text") and not event["part"].get("refusal")
            require(is_empty, "a part is empty when it is added", event)
    if outputs:
        require_equal(events[-1]["item"]["output"], outputs, "`output` of the shell_call_output, as streamed")


def _check_annotations(events: list[SentEvent], final: dict[str, Any]) -> None:
    """The annotations of a message are those of its events."""
    sent: defaultdict[int, list[Any]] = defaultdict(list)
    for event in events:
        if event["type"] == "response.output_text.annotation.added":
            sent[event["content_index"]].append(event["annotation"])
    if events[0]["item"]["type"] != "message":
        return
    for index, part in enumerate(final.get("content") or ()):
        require_equal(part.get("annotations") or [], sent[index], "the annotations of a part, as streamed")
