from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from antwort.api import events as wire
from antwort.api.events import to_sse
from antwort.api.projection import ResponseView
from antwort.api.requests import Include
from antwort.api.responses import Response

LOGPROB = {"token": "x", "bytes": [120], "logprob": -0.5, "top_logprobs": []}
SOURCES = [{"type": "url", "url": "https://x.example"}]

# For each value of `include`: an item with the optional field, and the same item without it.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "code_interpreter_call.outputs": (
        {"type": "code_interpreter_call", "id": "ci_1", "outputs": [{"type": "logs", "logs": "1"}]},
        {"type": "code_interpreter_call", "id": "ci_1", "outputs": None},
    ),
    "antwort:code_interpreter_call.result": (
        {"type": "code_interpreter_call", "id": "ci_1", "antwort:result": {"exit_code": 0}},
        {"type": "code_interpreter_call", "id": "ci_1"},
    ),
    "antwort:shell_call_output.file_ids": (
        {"type": "shell_call_output", "status": "completed", "output": [], "antwort:file_ids": ["cfile_1"]},
        {"type": "shell_call_output", "status": "completed", "output": []},
    ),
    "computer_call_output.output.image_url": (
        {"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": "data:"}},
        {"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": None}},
    ),
    "file_search_call.results": (
        {"type": "file_search_call", "queries": ["q"], "results": [{"text": "found"}]},
        {"type": "file_search_call", "queries": ["q"], "results": None},
    ),
    "message.input_image.image_url": (
        {"type": "message", "content": ["odd", {"type": "input_image", "image_url": "data:", "detail": "low"}]},
        {"type": "message", "content": ["odd", {"type": "input_image", "image_url": None, "detail": "low"}]},
    ),
    "message.output_text.logprobs": (
        {"type": "message", "content": [{"type": "output_text", "text": "x", "logprobs": [LOGPROB]}]},
        {"type": "message", "content": [{"type": "output_text", "text": "x", "logprobs": []}]},
    ),
    "web_search_call.action.sources": (
        {"type": "web_search_call", "action": {"type": "search", "query": "q", "sources": SOURCES}},
        {"type": "web_search_call", "action": {"type": "search", "query": "q"}},
    ),
    "web_search_call.results": (
        {"type": "web_search_call", "status": "completed", "results": [{"url": "https://x.example"}]},
        {"type": "web_search_call", "status": "completed"},
    ),
}


def test_every_include_value_that_filters_items_has_a_case():
    events_only = "antwort:code_interpreter_call.live_output"
    assert set(get_args(Include)) - set(CASES) == {"reasoning.encrypted_content", events_only}


@pytest.mark.parametrize("value", CASES)
def test_an_optional_field_is_present_only_if_included(value):
    full, filtered = CASES[value]

    assert ResponseView(frozenset({value})).item(full) == full
    assert ResponseView(frozenset(set(CASES) - {value})).item(full) == filtered
    assert full == CASES[value][0]
    assert ResponseView().item(filtered) is filtered


def test_an_item_without_optional_fields_is_the_same_object():
    for item in (
        {"type": "function_call", "arguments": "{}"},
        {"type": "reasoning", "encrypted_content": "gAAAA"},
        {"type": "message", "content": "a string"},
        {"type": "web_search_call", "action": "odd"},
        {"type": "made_up", "outputs": [1]},
    ):
        assert ResponseView().item(item) is item


def response(*output: dict[str, Any]) -> Response:
    return Response(id="resp_1", created_at=1, model="m", output=list(output))


@pytest.mark.parametrize("value", CASES)
def test_live_and_stored_events_are_filtered_alike(value):
    full, filtered = CASES[value]
    plain = {"type": "function_call"}
    ended = wire.ResponseCompleted(response=response(full, plain), sequence_number=3)
    done = wire.OutputItemDone(output_index=0, item=full, sequence_number=2)

    for view, item in ((ResponseView(), filtered), (ResponseView({value}), full)):
        assert view.response(ended.response).output == [item, plain]
        for event in (ended, done):
            assert view.event(event) == view.frame(to_sse(event))
        event = json.loads(view.event(done).partition(b"data: ")[2])
        assert event == {
            "type": "response.output_item.done",
            "output_index": 0,
            "item": item,
            "sequence_number": 2,
        }
    assert ended.response.output[0] is full


def test_only_deltas_are_obfuscated_and_only_on_request():
    delta = wire.OutputTextDelta(item_id="m", output_index=0, content_index=0, delta="x", sequence_number=1)
    created = wire.ResponseCreated(response=response(), sequence_number=0)

    for sent in (ResponseView(obfuscation=True).event(delta), ResponseView(obfuscation=True).frame(to_sse(delta))):
        assert json.loads(sent.partition(b"data: ")[2]).keys() - json.loads(to_sse(delta).partition(b"data: ")[2]) == {
            "obfuscation"
        }
    assert ResponseView().event(delta) == ResponseView().frame(to_sse(delta)) == to_sse(delta)
    assert b"obfuscation" not in ResponseView(obfuscation=True).event(created)
