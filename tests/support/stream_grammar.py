"""Grammar of event streams: order, keys, numbering, ids, statuses and texts of the SSE events of a response.

It is written from OpenAI's wire, not from this server, and uses only the sent bytes. Each event type is a letter, and
the events of an item must match the regular expression of its item type.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import Any, NamedTuple, TypeAlias

SentEvent: TypeAlias = dict[str, Any]


class EventRule(NamedTuple):
    """The letter of an event type, and its keys besides `type` and `sequence_number`."""

    letter: str
    keys: frozenset[str]


def _events(where: str, **rules: tuple[str, str]) -> dict[str, EventRule]:
    return {
        name.replace("__", "."): EventRule(letter, frozenset(f"{where} {keys}".split()))
        for name, (letter, keys) in rules.items()
    }


EVENTS: dict[str, EventRule] = {
    **_events("output_index", output_item__added=("A", "item"), output_item__done=("D", "item")),
    **_events(
        "item_id output_index content_index",
        content_part__added=("(", "part"),
        content_part__done=(")", "part"),
        output_text__delta=("t", "delta logprobs"),
        output_text__annotation__added=("n", "annotation annotation_index"),
        output_text__done=("T", "text logprobs"),
        refusal__delta=("r", "delta"),
        refusal__done=("R", "refusal"),
        reasoning_text__delta=("k", "delta"),
        reasoning_text__done=("K", "text"),
    ),
    **_events(
        "item_id output_index summary_index",
        reasoning_summary_part__added=("[", "part"),
        reasoning_summary_part__done=("]", "part"),
        reasoning_summary_text__delta=("s", "delta"),
        reasoning_summary_text__done=("S", "text"),
    ),
    **_events(
        "item_id output_index",
        function_call_arguments__delta=("f", "delta"),
        function_call_arguments__done=("F", "arguments"),
        custom_tool_call_input__delta=("c", "delta"),
        custom_tool_call_input__done=("C", "input"),
        compaction__compacting=("x", ""),
        code_interpreter_call__in_progress=("I", ""),
        code_interpreter_call_code__delta=("p", "delta"),
        code_interpreter_call_code__done=("P", "code"),
        code_interpreter_call__interpreting=("e", ""),
        code_interpreter_call__completed=("E", ""),
        file_search_call__in_progress=("i", ""),
        file_search_call__searching=("q", ""),
        file_search_call__completed=("Q", ""),
        web_search_call__in_progress=("w", ""),
        web_search_call__searching=("y", ""),
        web_search_call__completed=("Y", ""),
        apply_patch_call_operation_diff__delta=("v", "delta"),
        apply_patch_call_operation_diff__done=("V", "diff"),
    ),
    **_events(
        "output_index command_index",
        shell_call_command__added=("<", "command"),
        shell_call_command__delta=("h", "delta"),
        shell_call_command__done=(">", "command"),
    ),
    **{
        name: EventRule("", frozenset(["response"]))
        for name in ("created", "queued", "in_progress", "completed", "failed", "incomplete")
    },
    "error": EventRule("", frozenset(["error"])),
}
"""All event types that this server sends, without the prefix `response.`."""


class ItemRule(NamedTuple):
    """An item type: the prefix of its id, its keys, and the order of its events."""

    prefix: str
    keys: frozenset[str]
    order: str
    interrupted_order: str = ""
    """The order if the call failed or was not run to its end; by default the same."""
    optional_keys: frozenset[str] = frozenset()
    statuses: frozenset[str] = frozenset(["completed", "incomplete"])
    """The statuses of the ended item."""
    late_keys: frozenset[str] = frozenset()
    """Keys that the item has at its end, and not when it is added."""


def _keys(names: str) -> frozenset[str]:
    return frozenset(names.split())


_HOSTED_STATUSES = _keys("completed incomplete failed")

ITEMS: dict[str, ItemRule] = {
    "message": ItemRule(
        "msg_", _keys("id type status role content"), r"A(\(([tn]+T|r+R)\))*D", optional_keys=_keys("phase")
    ),
    "reasoning": ItemRule(
        "rs_", _keys("id type summary"), r"A(\[s+S\]|\(k+K\))*D", optional_keys=_keys("content encrypted_content")
    ),
    "function_call": ItemRule(
        "fc_", _keys("id type status call_id name arguments"), "Af*FD", optional_keys=_keys("namespace")
    ),
    "custom_tool_call": ItemRule(
        "ctc_", _keys("id type status call_id name input"), "Ac*CD", optional_keys=_keys("namespace")
    ),
    "code_interpreter_call": ItemRule(
        "ci_",
        _keys("id type status code container_id outputs"),
        "AIp*PeED",
        interrupted_order="AIp*(Pe?)?D",
        statuses=_HOSTED_STATUSES,
    ),
    "file_search_call": ItemRule(
        "fs_",
        _keys("id type status queries results"),
        "AiqQD",
        interrupted_order="Aiq?Q?D",
        statuses=_HOSTED_STATUSES,
    ),
    "web_search_call": ItemRule(
        "ws_",
        _keys("id type status"),
        "AwyYD",
        interrupted_order="Awy?Y?D",
        statuses=_HOSTED_STATUSES,
        late_keys=_keys("action"),
    ),
    "apply_patch_call": ItemRule("apc_", _keys("id type status call_id operation"), "A(v*V)?D"),
    "shell_call": ItemRule(
        "sh_", _keys("id type status call_id action"), "A(<h*>)+D", interrupted_order="A(<h*>)*(<h*)?D"
    ),
    "local_shell_call": ItemRule("lsh_", _keys("id type status call_id action"), "AD"),
    "computer_call": ItemRule(
        "cu_", _keys("id type status call_id pending_safety_checks"), "AD", optional_keys=_keys("action actions")
    ),
    "compaction": ItemRule("cmp_", _keys("id type encrypted_content"), "Ax?D", optional_keys=_keys("created_by")),
    "tool_search_call": ItemRule("tsc_", _keys("id type status arguments call_id execution"), "AD"),
}

PART_KEYS = {
    "output_text": _keys("type text annotations logprobs"),
    "refusal": _keys("type refusal"),
    "reasoning_text": _keys("type text"),
    "summary_text": _keys("type text"),
    "container_file_citation": _keys("type container_id file_id filename start_index end_index"),
    "file_citation": _keys("type file_id filename index"),
    "url_citation": _keys("type url title start_index end_index"),
    "logs": _keys("type logs"),
    "image": _keys("type url"),
}
"""The keys of content parts, annotations and outputs."""

RESPONSE_KEYS = _keys(
    "id object created_at status background completed_at error incomplete_details instructions max_output_tokens "
    "max_tool_calls model output parallel_tool_calls previous_response_id conversation prompt prompt_cache_key "
    "prompt_cache_retention reasoning safety_identifier service_tier store temperature text tool_choice tools "
    "top_logprobs top_p presence_penalty frequency_penalty truncation usage user metadata"
)
"""The keys of every response. Additional ones begin with `antwort:`."""

OPTIONAL_RESPONSE_KEYS = _keys("tool_usage")

ACTION_KEYS = {
    "search": _keys("type query queries"),
    "open_page": _keys("type url"),
    "find_in_page": _keys("type url pattern"),
}
"""The keys of the actions of a web search; of a search also `sources`, if they are included."""

RESPONSE_STATUSES = {
    "response.created": _keys("in_progress queued"),
    "response.queued": _keys("queued"),
    "response.in_progress": _keys("in_progress"),
    "response.completed": _keys("completed"),
    "response.incomplete": _keys("incomplete cancelled"),
    "response.failed": _keys("failed"),
}

DONE_FIELDS = {
    "output_text": "text",
    "refusal": "refusal",
    "reasoning_text": "text",
    "reasoning_summary_text": "text",
    "function_call_arguments": "arguments",
    "custom_tool_call_input": "input",
    "code_interpreter_call_code": "code",
    "apply_patch_call_operation_diff": "diff",
    "shell_call_command": "command",
}
"""The field of a `done` event that equals the concatenated deltas."""

_PART_INDEXES = ("content_index", "summary_index", "command_index")

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


def check_stream(
    events: list[SentEvent], *, background: bool = False, obfuscated: bool = True, is_continued: bool = False
) -> None:
    """Check sequence numbers, first and last events, order, keys, ids, statuses and texts.

    The numbers of a response that was continued after a crash grow, and may have gaps.
    """
    numbers = [event["sequence_number"] for event in events]
    assert numbers == (sorted(set(numbers)) if is_continued else list(range(len(events))))
    kinds = [event["type"] for event in events]
    opening = ["response.created", *(["response.queued"] if background else []), "response.in_progress"]
    assert kinds[: len(opening)] == opening
    assert all(event["response"]["output"] == [] for event in events[: len(opening)])
    assert [kind for kind in kinds if kind in FINAL_EVENTS] == [kinds[-1]]
    assert [at for at, kind in enumerate(kinds, 2) if kind == "error"] in ([], [len(kinds)]), "error precedes the end"
    assert {event["response"]["id"] for event in events if "response" in event} == {events[0]["response"]["id"]}
    for event in events:
        _check_keys(event, obfuscated=obfuscated)
    _check_order(events)
    final = events[-1]["response"]
    items = _events_by_item(events)
    assert list(items) == list(range(len(items)))
    if final["status"] != "completed" and items and _is_unwritten(events):
        items.popitem()
    for index, item_events in items.items():
        _check_item(item_events, final["output"][index], is_completed=final["status"] == "completed")
    assert len(final["output"]) == len(items)


def _is_unwritten(events: list[SentEvent]) -> bool:
    """Whether the last item is a compaction whose summary was not written: it is not part of the response."""
    last = [event for event in events if "item" in event][-1]
    return last["type"] == "response.output_item.added" and last["item"]["type"] == "compaction"


def _check_keys(event: SentEvent, *, obfuscated: bool) -> None:
    """The keys of an event and of what it carries; `obfuscation` in deltas only."""
    kind = event["type"]
    is_padded = obfuscated and kind.endswith(".delta")
    expected = EVENTS[kind.removeprefix("response.")].keys | {"type", "sequence_number"}
    assert set(event) == (expected | {"obfuscation"} if is_padded else expected), kind
    if "response" in event:
        response = event["response"]
        keys = {key for key in response if not key.startswith("antwort:")}
        assert keys - OPTIONAL_RESPONSE_KEYS == RESPONSE_KEYS
        assert response["status"] in RESPONSE_STATUSES[kind]
        assert (response["error"] is not None) == (kind == "response.failed")
        assert (response["incomplete_details"] is not None) == (response["status"] == "incomplete")
    if "error" in event:
        assert set(event["error"]) == {"type", "code", "message", "param"}
    if "item" in event:
        _check_item_keys(event["item"], is_done=kind == "response.output_item.done")
    for name in ("part", "annotation"):
        if name in event:
            _check_part(event[name])


def _check_item_keys(item: SentEvent, *, is_done: bool) -> None:
    rule = ITEMS[item["type"]]
    keys = rule.keys | rule.late_keys if is_done else rule.keys
    assert keys <= set(item) <= keys | rule.optional_keys, item["type"]
    if item["type"] == "web_search_call" and "action" in item:
        action = item["action"]
        assert set(action) - {"sources"} == ACTION_KEYS[action["type"]]
        assert all(set(source) == {"type", "url"} for source in action.get("sources", ()))
    assert item["id"].startswith(rule.prefix)
    for part in [*(item.get("content") or ()), *(item.get("summary") or ()), *(item.get("outputs") or ())]:
        _check_part(part)


def _check_part(part: SentEvent) -> None:
    assert set(part) == PART_KEYS[part["type"]], part["type"]
    for annotation in part.get("annotations", ()):
        _check_part(annotation)


def _check_order(events: list[SentEvent]) -> None:
    """An item is done before the next one is added, and has all events in between."""
    open_index = None
    for event in events:
        if "output_index" not in event:
            continue
        if event["type"] == "response.output_item.added":
            assert open_index is None, "an item is done before the next one is added"
            open_index = event["output_index"]
        assert event["output_index"] == open_index
        if event["type"] == "response.output_item.done":
            open_index = None


def _events_by_item(events: list[SentEvent]) -> dict[int, list[SentEvent]]:
    items: defaultdict[int, list[SentEvent]] = defaultdict(list)
    for event in events:
        if "output_index" in event:
            items[event["output_index"]].append(event)
    return dict(items)


def _check_item(events: list[SentEvent], final: SentEvent, *, is_completed: bool) -> None:
    added = events[0]["item"]
    rule = ITEMS[added["type"]]
    word = "".join(EVENTS[event["type"].removeprefix("response.")].letter for event in events)
    ended = word.endswith("D")
    assert ended or not is_completed
    if ended:
        is_interrupted = final.get("status", "completed") != "completed"
        order = (rule.interrupted_order if is_interrupted else "") or rule.order
        assert re.fullmatch(order, word), (added["type"], word)
        assert events[-1]["item"] == final
        assert set(added) <= set(final)
        assert final.get("status", "completed") in rule.statuses
    identity = [(item["type"], item["id"], item.get("call_id")) for item in (added, final)]
    assert identity[0] == identity[1]
    assert {event["item_id"] for event in events if "item_id" in event} <= {added["id"]}
    assert added.get("status", "in_progress") == "in_progress"
    assert not (is_completed and final.get("status") == "incomplete")
    _check_empty(added)
    _check_texts(events)


def _check_empty(added: SentEvent) -> None:
    """Nothing of an item is written when it is added."""
    for name in ("content", "summary", "arguments", "input", "code", "outputs", "queries"):
        assert not added.get(name), (added["type"], name)
    if added["type"] in ("shell_call", "local_shell_call", "apply_patch_call"):
        written = added.get("action") or added["operation"]
        assert not any(written.get(name) for name in ("commands", "command", "env", "diff"))


def _check_texts(events: list[SentEvent]) -> None:
    """The deltas of a part add up to its `done` text; a part starts empty."""
    texts: defaultdict[tuple[str, int], str] = defaultdict(str)
    for event in events:
        kind, _, step = event["type"].removeprefix("response.").rpartition(".")
        part = (kind, next((event[name] for name in _PART_INDEXES if name in event), 0))
        if step == "delta":
            texts[part] += event["delta"]
        elif step == "done" and kind in DONE_FIELDS:
            assert event[DONE_FIELDS[kind]] == texts[part]
        elif step == "added" and "part" in event:
            assert not event["part"].get("text")
            assert not event["part"].get("refusal")
        elif step == "added" and kind in DONE_FIELDS:
            assert event[DONE_FIELDS[kind]] == ""
