"""Event stream of the code interpreter: order and keys, written out and compared with a recording of OpenAI's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fixtures_code_interpreter import AUTO, BACKENDS, OUTPUTS, call, code_server
from fixtures_code_interpreter import SCRIPT as STORIES

REFERENCE = Path(__file__).parents[2].parent / "shared" / "reference"
RECORDING = REFERENCE / "openai-code-interpreter-stream.jsonl"

CODE = "total = 1 + 2\ntotal\n"
ANSWER = "The sum is 3: [sum.txt](sandbox:/mnt/data/sum.txt)"
WRITES = "open('/mnt/data/sum.txt', 'w').write(str(total))"


def recorded() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RECORDING.read_text(encoding="utf-8").splitlines()]


def replayed() -> list[dict[str, Any]]:
    """A script for the model with the code and the texts of the recording."""
    output = recorded()[-1]["response"]["output"]
    codes = [item["code"] for item in output if item["type"] == "code_interpreter_call"]
    answer = output[-1]["content"][0]["text"]
    turns = [[call(code)] for code in codes] + [[{"text": answer}]]
    return [{"when": {"text": "two dice", "turn": at}, "reply": turn} for at, turn in enumerate(turns, 1)]


@pytest.fixture(scope="module", params=BACKENDS)
def server(request, tmp_path_factory):
    story = [
        {"when": {"text": "sum", "turn": 1}, "reply": [call(CODE)]},
        {"when": {"text": "sum", "turn": 2}, "reply": [call(WRITES)]},
        {"when": {"text": "sum", "turn": 3}, "reply": [{"text": ANSWER}]},
    ]
    again = replayed() if RECORDING.is_file() else []
    script = {**STORIES, "answers": [*story, *again, *STORIES["answers"]]}
    with code_server(request.param, tmp_path_factory.mktemp("server"), script=script) as running:
        yield running


def stream(server, text: str, **more: Any) -> list[dict[str, Any]]:
    """The raw events of a stream."""
    body = {"model": "scripted", "input": text, "tools": [AUTO], "include": OUTPUTS, "stream": True, **more}
    with server.http() as http, http.stream("POST", "/v1/responses", json=body) as answer:
        assert answer.status_code == 200
        frames = answer.read().decode().split("\n\n")
    events = []
    for frame in filter(None, frames):
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def shape(event: dict[str, Any]) -> tuple[Any, ...]:
    """The type of an event, and the keys of it and of its item or response."""
    keys = sorted(event)
    inner = event.get("item") or event.get("part") or event.get("annotation") or {}
    outputs = [sorted(one) for one in inner.get("outputs") or ()]
    return event["type"], keys, sorted(inner), outputs


def shapes(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The shapes of events; consecutive deltas count once, so that streams with other fragments compare equal."""
    found: list[tuple[Any, ...]] = []
    for event in events:
        one = shape(event)
        if not (found and one == found[-1] and event["type"].endswith(".delta")):
            found.append(one)
    return found


def test_event_order_and_keys(server):
    common = ["item_id", "output_index", "sequence_number", "type"]
    delta = sorted([*common, "delta", "obfuscation"])
    part = sorted([*common, "content_index"])
    item = ["item", "output_index", "sequence_number", "type"]
    code = ["code", "container_id", "id", "outputs", "status", "type"]
    message = ["content", "id", "role", "status", "type"]
    text = ["annotations", "logprobs", "text", "type"]
    whole = ["response", "sequence_number", "type"]

    def code_call(*outputs: list[str]) -> list[tuple[Any, ...]]:
        return [
            ("response.output_item.added", item, code, []),
            ("response.code_interpreter_call.in_progress", common, [], []),
            ("response.code_interpreter_call_code.delta", delta, [], []),
            ("response.code_interpreter_call_code.done", sorted([*common, "code"]), [], []),
            ("response.code_interpreter_call.interpreting", common, [], []),
            ("response.code_interpreter_call.completed", common, [], []),
            ("response.output_item.done", item, code, list(outputs)),
        ]

    assert shapes(stream(server, "the sum")) == [
        ("response.created", whole, [], []),
        ("response.in_progress", whole, [], []),
        *code_call(["logs", "type"]),
        *code_call(["logs", "type"]),
        ("response.output_item.added", item, message, []),
        ("response.content_part.added", sorted([*part, "part"]), text, []),
        ("response.output_text.delta", sorted([*part, "delta", "logprobs", "obfuscation"]), [], []),
        (
            "response.output_text.annotation.added",
            sorted([*part, "annotation", "annotation_index"]),
            ["container_id", "end_index", "file_id", "filename", "start_index", "type"],
            [],
        ),
        ("response.output_text.done", sorted([*part, "logprobs", "text"]), [], []),
        ("response.content_part.done", sorted([*part, "part"]), text, []),
        ("response.output_item.done", item, message, []),
        ("response.completed", whole, [], []),
    ]


def test_events_are_consistent(server):
    events = stream(server, "the sum")
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert [item["id"] for item in done] == [item["id"] for item in added]
    assert [(item["code"], item["outputs"], item["status"]) for item in added[:2]] == [("", [], "in_progress")] * 2
    assert [item["code"] for item in done[:2]] == [CODE, WRITES]
    assert [item["outputs"] for item in done[:2]] == [[{"type": "logs", "logs": "3"}], [{"type": "logs", "logs": "1"}]]
    for item in done[:2]:
        deltas = [event["delta"] for event in events if event.get("item_id") == item["id"] and "delta" in event]
        whole = [event["code"] for event in events if event.get("item_id") == item["id"] and "code" in event]
        assert "".join(deltas) == item["code"] == whole[0]
        assert len(deltas) > 2
    assert len({item["container_id"] for item in (*added[:2], *done[:2])}) == 1
    response = events[-1]["response"]
    assert response["output"] == done
    assert response["tools"] == [AUTO]
    (annotation,) = done[-1]["content"][0]["annotations"]
    assert ANSWER[annotation["start_index"] : annotation["end_index"]] == "sandbox:/mnt/data/sum.txt"


def test_outputs_are_null_unless_included(server):
    events = stream(server, "the sum", include=[])
    items = [event["item"] for event in events if event.get("item", {}).get("type") == "code_interpreter_call"]
    assert [item["outputs"] for item in items] == [None] * 4
    assert [item["outputs"] for item in events[-1]["response"]["output"][:2]] == [None, None]


def test_live_output_is_streamed_only_if_included(server):
    text = "# run\nimport sys, time\nprint('a', flush=True)\ntime.sleep(0.3)\nprint('b', file=sys.stderr)"
    events = stream(server, text, include=["antwort:code_interpreter_call.live_output"])
    kinds = [event["type"].removeprefix("response.code_interpreter_call") for event in events]
    live = [event for event in events if event["type"] == "antwort:code_interpreter_call.output.delta"]

    assert [(event["stream"], event["delta"]) for event in live] == [("stdout", "a\n"), ("stderr", "b\n")]
    first = events.index(live[0])
    assert kinds.index(".interpreting") < first < kinds.index(".completed")
    assert {event["item_id"] for event in live} == {events[-1]["response"]["output"][0]["id"]}
    assert not any(event["type"].startswith("antwort:") for event in stream(server, text))


@pytest.mark.skipif(not RECORDING.is_file(), reason="the recording does not lie beside this clone")
def test_events_equal_the_recording(server):
    recording = [event for event in recorded() if event.get("item", {}).get("type") != "reasoning"]
    streamed = stream(server, "roll two dice")

    assert shapes(streamed) == shapes(recording)
    for event, expected in ((streamed[0], recording[0]), (streamed[-1], recording[-1])):
        assert set(expected["response"]) <= set(event["response"])
        assert event["response"]["tools"] == expected["response"]["tools"]
    items, recorded_items = streamed[-1]["response"]["output"], recording[-1]["response"]["output"]
    recorded_items = [item for item in recorded_items if item["type"] != "reasoning"]
    assert [item["type"] for item in items] == [item["type"] for item in recorded_items]
    for item, expected in zip(items, recorded_items, strict=True):
        assert item.keys() == expected.keys()
        if item["type"] == "code_interpreter_call":
            assert (item["code"], item["status"]) == (expected["code"], expected["status"])
    assert items[1]["outputs"] == recorded_items[1]["outputs"]  # the others are random
    part, recorded_part = items[-1]["content"][0], recorded_items[-1]["content"][0]
    assert part["text"] == recorded_part["text"]
    indexes = [
        [(one["start_index"], one["end_index"]) for one in part["annotations"]] for part in (part, recorded_part)
    ]
    assert indexes[0] == indexes[1]
