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

# For each value of `include`: an item that has what it asks for, and the same item without.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "code_interpreter_call.outputs": (
        {"type": "code_interpreter_call", "id": "ci_1", "outputs": [{"type": "logs", "logs": "1"}]},
        {"type": "code_interpreter_call", "id": "ci_1", "outputs": None},
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


def test_every_value_of_include_has_a_case_but_for_what_is_always_shown_and_what_asks_for_events():
    events = "antwort:code_interpreter_call.live_output"
    assert set(get_args(Include)) - set(CASES) == {"reasoning.encrypted_content", events}


@pytest.mark.parametrize("value", CASES)
def test_what_is_not_included_is_left_out_and_what_is_included_is_there(value):
    whole, cut = CASES[value]

    assert ResponseView(frozenset({value})).item(whole) == whole
    assert ResponseView(frozenset(set(CASES) - {value})).item(whole) == cut
    assert whole == CASES[value][0]
    assert ResponseView().item(cut) is cut


def test_what_has_nothing_to_hide_is_the_same_object():
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
def test_responses_and_events_show_the_same_live_and_kept(value):
    whole, cut = CASES[value]
    plain = {"type": "function_call"}
    ended = wire.ResponseCompleted(response=response(whole, plain), sequence_number=3)
    done = wire.OutputItemDone(output_index=0, item=whole, sequence_number=2)

    for view, item in ((ResponseView(), cut), (ResponseView({value}), whole)):
        assert view.response(ended.response).output == [item, plain]
        for event in (ended, done):
            assert view.event(event) == view.frame(to_sse(event))
        told = json.loads(view.event(done).partition(b"data: ")[2])
        assert told == {
            "type": "response.output_item.done",
            "output_index": 0,
            "item": item,
            "sequence_number": 2,
        }
    assert ended.response.output[0] is whole


def test_only_deltas_are_padded_and_only_when_that_is_wanted():
    delta = wire.OutputTextDelta(item_id="m", output_index=0, content_index=0, delta="x", sequence_number=1)
    created = wire.ResponseCreated(response=response(), sequence_number=0)

    for sent in (ResponseView(obfuscation=True).event(delta), ResponseView(obfuscation=True).frame(to_sse(delta))):
        assert json.loads(sent.partition(b"data: ")[2]).keys() - json.loads(to_sse(delta).partition(b"data: ")[2]) == {
            "obfuscation"
        }
    assert ResponseView().event(delta) == ResponseView().frame(to_sse(delta)) == to_sse(delta)
    assert b"obfuscation" not in ResponseView(obfuscation=True).event(created)
