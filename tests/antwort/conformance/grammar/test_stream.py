"""The grammar of streams: every stream that follows it is accepted, and one mutation of it is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antwort.conformance.grammar import EVENTS, ITEMS, RESPONSE_KEYS, Violation, check_stream, read_frames
from antwort.conformance.grammar.rules import DONE_FIELDS

TYPES = {rule.letter: name for name, rule in EVENTS.items() if rule.letter}
SAMPLES: dict[str, Any] = {
    "action": {"type": "search", "query": "tea"},
    "shell_call.action": {"commands": ["ls"], "max_output_length": None, "timeout_ms": None},
    "local_shell_call.action": {"type": "exec", "command": ["ls"], "env": {}},
    "operation": {"type": "create_file", "path": "a", "diff": "+a"},
    "annotation": {"type": "file_citation", "file_id": "file-1", "filename": "a", "index": 1},
    "command_output": [{"outcome": {"type": "exit", "exit_code": 0}, "stdout": "a", "stderr": ""}],
}
EXAMPLES = settings(max_examples=40)
OPTIONAL_EVENTS = "xojJm"
"""Letters of events that may be missing, or may be anywhere among their siblings."""
PARTS = {"t": "output_text", "r": "refusal", "k": "reasoning_text", "s": "summary_text"}


class StreamBuilder:
    """Writes a valid stream from words of the grammar."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.output: list[dict[str, Any]] = []
        self._response = {**dict.fromkeys(RESPONSE_KEYS), "id": "resp_1", "object": "response"}
        for kind in ("created", "in_progress"):
            self._send(f"response.{kind}", response={**self._response, "status": "in_progress", "output": []})

    def end(self) -> list[dict[str, Any]]:
        usage = dict.fromkeys(
            ("input_tokens", "input_tokens_details", "output_tokens", "output_tokens_details", "total_tokens"), 0
        )
        final = {**self._response, "status": "completed", "output": self.output, "usage": usage}
        self._send("response.completed", response=final)
        return self.events

    def item(self, kind: str, word: str) -> None:
        index = len(self.output)
        item_id = f"{ITEMS[kind].prefix}{index}"
        added, done = self._ends(kind, item_id, word)
        texts: dict[str, str] = {}
        part = -1
        for at, letter in enumerate(word):
            name = TYPES[letter]
            subject = name.rpartition(".")[0]
            part += letter in "([b" or (letter in "oO" and word[at - 1] in "AO")
            if letter in "([bO":
                texts = {}
            if name.endswith(".delta"):
                texts[subject] = texts.get(subject, "") + "ab"
            values: dict[str, Any] = {
                "item_id": item_id,
                "output_index": index,
                **dict.fromkeys(("content_index", "summary_index", "command_index"), part),
                "delta": "ab",
                "annotation": SAMPLES["annotation"],
                "annotation_index": 0,
                "logprobs": [],
                "item": added if letter == "A" else done,
                "output": SAMPLES["command_output"],
                "partial_image_index": 0,
                "partial_image_b64": "",
            }
            if letter in "([":
                opened = next((PARTS[one.lower()] for one in word[at:] if one.lower() in PARTS), "output_text")
                done.setdefault("content" if letter == "(" else "summary", []).append(_part(opened))
            if letter in ")]":
                values["part"] = done["content" if letter == ")" else "summary"][-1]
            elif letter in "([":
                values["part"] = copy.deepcopy(done["content" if letter == "(" else "summary"][-1])
            if letter == "n":
                done["content"][-1]["annotations"].append(SAMPLES["annotation"])
            if letter == "O":
                done["output"] = [*done["output"], *SAMPLES["command_output"]]
            values[DONE_FIELDS.get(subject, "")] = texts.get(subject, "")
            if letter == "b":
                values["command"] = ""
            self._send(f"response.{name}", **{key: values[key] for key in EVENTS[name].keys})
        self.output.append(done)

    def _ends(self, kind: str, item_id: str, word: str) -> tuple[dict[str, Any], dict[str, Any]]:
        rule = ITEMS[kind]
        added: dict[str, Any] = dict.fromkeys(rule.keys)
        added |= {"id": item_id, "type": kind}
        done = {**added, **dict.fromkeys(rule.late_keys)}
        if "status" in rule.keys:
            added["status"], done["status"] = rule.initial_status, "completed"
        for key in rule.keys & {"content", "summary", "tools", "output"}:
            added[key], done[key] = [], []
        for key in (rule.keys | rule.late_keys) & {"action", "operation"}:
            done[key] = SAMPLES.get(f"{kind}.{key}", SAMPLES[key])
        if kind == "apply_patch_call" and "G" not in word:
            done["operation"] = {"type": "delete_file", "path": "a"}
        return added, done

    def _send(self, kind: str, **fields: Any) -> None:
        numbered = {"type": kind, "sequence_number": len(self.events), **fields}
        self.events.append(copy.deepcopy(numbered) if "item" not in fields and "part" not in fields else numbered)


def _part(kind: str) -> dict[str, Any]:
    if kind == "output_text":
        return {"type": kind, "text": "", "annotations": [], "logprobs": []}
    return {"type": kind, "refusal" if kind == "refusal" else "text": ""}


@st.composite
def streams(draw: st.DrawFn) -> list[dict[str, Any]]:
    builder = StreamBuilder()
    for kind in draw(st.lists(st.sampled_from(sorted(ITEMS)), min_size=1, max_size=3)):
        word = draw(st.from_regex(ITEMS[kind].order, fullmatch=True).filter(lambda word: len(word) < 20))
        builder.item(kind, word)
    return copy.deepcopy(builder.end())


def is_refused(events: list[dict[str, Any]]) -> bool:
    try:
        check_stream(events, obfuscated=False, strict=True)
    except Violation:
        return True
    return False


def renumbered(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def letter(event: dict[str, Any]) -> str:
    return EVENTS[event["type"].removeprefix("response.")].letter


@EXAMPLES
@given(streams())
def test_a_stream_that_follows_the_grammar_is_accepted(events):
    check_stream(events, obfuscated=False, strict=True)
    check_stream(events, obfuscated=True, strict=False)


@EXAMPLES
@given(streams(), st.data())
def test_a_missing_event_is_refused(events, data):
    at = data.draw(st.sampled_from([at for at, event in enumerate(events) if letter(event) not in [*OPTIONAL_EVENTS]]))
    assert is_refused(events[:at] + events[at + 1 :])
    assert is_refused(renumbered(events[:at] + events[at + 1 :]))


@EXAMPLES
@given(streams(), st.data())
def test_an_event_that_is_sent_twice_is_refused(events, data):
    at = data.draw(st.sampled_from([at for at, event in enumerate(events) if letter(event) not in [*OPTIONAL_EVENTS]]))
    assert is_refused(renumbered([*events[: at + 1], *events[at:]]))


@EXAMPLES
@given(streams(), st.data())
def test_neighbouring_events_in_the_wrong_order_are_refused(events, data):
    movable = {*OPTIONAL_EVENTS, "n"}
    pairs = [
        at
        for at in range(len(events) - 1)
        if events[at]["type"] != events[at + 1]["type"] and not movable & {letter(events[at]), letter(events[at + 1])}
    ]
    at = data.draw(st.sampled_from(pairs))
    assert is_refused(renumbered([*events[:at], events[at + 1], events[at], *events[at + 2 :]]))


@EXAMPLES
@given(streams(), st.data())
def test_a_missing_key_is_refused(events, data):
    event = data.draw(st.sampled_from(events))
    keys = EVENTS[event["type"].removeprefix("response.")].keys | {"type", "sequence_number"}
    del event[data.draw(st.sampled_from(sorted(keys - {"type"})))]
    assert is_refused(events)


@EXAMPLES
@given(streams(), st.data())
def test_a_missing_key_of_an_item_is_refused(events, data):
    event = data.draw(st.sampled_from([event for event in events if "item" in event]))
    del event["item"][data.draw(st.sampled_from(sorted(ITEMS[event["item"]["type"]].keys)))]
    assert is_refused(events)


@EXAMPLES
@given(streams(), st.data())
def test_another_id_in_one_event_is_refused(events, data):
    event = data.draw(st.sampled_from([event for event in events if {"item", "item_id", "response"} & set(event)]))
    for where in ("item", "response"):
        if where in event:
            event[where]["id"] += "0"
    if "item_id" in event:
        event["item_id"] += "0"
    assert is_refused(events)


@EXAMPLES
@given(streams(), st.data())
def test_an_unknown_key_is_refused_only_if_strict(events, data):
    event = data.draw(st.sampled_from(events))
    event["novel"] = 1
    assert is_refused(events)
    check_stream(events)


@EXAMPLES
@given(streams(), st.data())
def test_a_changed_delta_is_refused(events, data):
    deltas = [event for event in events if event["type"].endswith(".delta") and letter(event) != "o"]
    if not deltas:
        return
    data.draw(st.sampled_from(deltas))["delta"] += "!"
    assert is_refused(events)


@EXAMPLES
@given(streams())
def test_a_final_response_without_its_last_item_is_refused(events):
    events[-1]["response"]["output"].pop()
    assert is_refused(events)


@pytest.mark.parametrize(
    "stream",
    [
        b"data: {}\n\n",
        b"event: a\ndata: {}\n\n",
        b'event: a\ndata: {"type": "b"}\n\n',
        b'id: 1\nevent: a\ndata: {"type": "a"}\n\n',
        b'event: a\ndata: {"type": "a"}',
        b"event: a\ndata: {]}\n\n",
    ],
)
def test_a_malformed_frame_is_refused(stream):
    with pytest.raises(Violation):
        read_frames(stream)


def test_comments_and_the_old_end_mark_are_accepted():
    stream = b': keep-alive\n\nevent: a\r\ndata: {"type": "a"}\r\n\r\ndata: [DONE]\n\n'
    assert read_frames(stream) == [{"type": "a"}]
