"""Reasoning through the server process: summaries on request, encrypted content, and the replay to a chat model."""

from __future__ import annotations

import pytest
from fake_upstream import FakeUpstream, running_upstream
from fixtures_server import run_server
from stream_grammar import check_stream, read_frames

from antwort.testing.model import AnswerCall, ModelAnswer

THOUGHT = "The user greets me, so I greet back."
SEALED = ["reasoning.encrypted_content"]
CHAT = FakeUpstream.chat(ModelAnswer(reasoning=THOUGHT, text="Hello."))
SUMMARY_EVENTS = [
    "response.reasoning_summary_part.added",
    "response.reasoning_summary_text.delta",
    "response.reasoning_summary_text.done",
    "response.reasoning_summary_part.done",
]
FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False}


@pytest.fixture(scope="module")
def upstream():
    with running_upstream() as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory, upstream):
    models = {
        "chat": {"kind": "chat_completions", "base_url": upstream.url, "replay_reasoning": "reasoning_content"},
        "scripted": {"kind": "scripted", "script": "script.yaml"},
        "responses": {"kind": "responses", "base_url": upstream.url},
    }
    script = {"fragment": 7, "answers": [{"reply": [{"reasoning": THOUGHT}, {"text": "Hello."}]}]}
    with run_server(tmp_path_factory.mktemp("server"), {"models": models}, script=script) as running:
        yield running


@pytest.fixture(autouse=True)
def _reset(upstream):
    upstream.reset()
    upstream.set_replies(CHAT)


@pytest.fixture
def http(server):
    with server.http() as http:
        yield http


@pytest.fixture
def client(server):
    with server.client() as client:
        yield client


def create(http, **body) -> dict:
    answer = http.post("/v1/responses", json={"model": "chat", "input": "hi", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("model", ["chat", "scripted"])
@pytest.mark.parametrize("option", ["summary", "generate_summary"])
@pytest.mark.parametrize("value", ["auto", "concise", "detailed"])
def test_a_requested_summary_has_the_reasoning_and_its_events_in_the_sdk(client, model, option, value):
    with client.responses.stream(model=model, input="hi", reasoning={option: value, "effort": "low"}) as stream:
        events = list(stream)
        response = stream.get_final_response()

    kinds = [event.type for event in events]
    assert [kind for kind in dict.fromkeys(kinds) if "reasoning" in kind] == SUMMARY_EVENTS
    assert kinds.count(SUMMARY_EVENTS[0]) == 1
    assert "".join(event.delta for event in events if event.type == SUMMARY_EVENTS[1]) == THOUGHT
    reasoning, message = response.output
    assert [(part.type, part.text) for part in reasoning.summary] == [("summary_text", THOUGHT)]
    assert (reasoning.content, message.content[0].text) == (None, "Hello.")
    assert (getattr(response.reasoning, option), response.reasoning.effort) == (value, "low")
    stored = client.responses.retrieve(response.id)
    assert stored.output[0] == reasoning
    assert stored.reasoning == response.reasoning


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reasoning", [{}, {"reasoning": {"effort": "low"}}, {"reasoning": {"summary": None}}])
def test_without_a_requested_summary_the_reasoning_is_content(http, stream, reasoning):
    if stream:
        posted = http.post("/v1/responses", json={"model": "chat", "input": "hi", "stream": True, **reasoning})
        events = read_frames(posted.content)
        check_stream(events)
        assert not [event for event in events if event["type"] in SUMMARY_EVENTS]
        item = events[-1]["response"]["output"][0]
    else:
        item = create(http, **reasoning)["output"][0]

    assert item["content"] == [{"type": "reasoning_text", "text": THOUGHT}]
    assert item["summary"] == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("summary", [None, "auto"])
def test_encrypted_content_and_a_summary_are_replayed_to_the_chat_model_once(http, upstream, stream, summary):
    body = {"include": SEALED, "reasoning": {"summary": summary}, "store": False}
    if stream:
        posted = http.post("/v1/responses", json={"model": "chat", "input": "hi", "stream": True, **body})
        events = read_frames(posted.content)
        check_stream(events)
        response = events[-1]["response"]
    else:
        response = create(http, **body)
    thought, message = response["output"]
    assert thought["encrypted_content"].startswith("antwort1.")
    assert [part["text"] for part in thought["summary"]] == ([THOUGHT] if summary else [])
    assert ("content" in thought) == (summary is None)

    bare = {"type": "reasoning", "summary": [], "encrypted_content": thought["encrypted_content"]}
    without_seal = {key: value for key, value in thought.items() if key not in ("encrypted_content", "id")}
    for replayed in (thought, bare, {**bare, "summary": thought["summary"]}, without_seal):
        upstream.requests.clear()
        create(http, **body | {"input": [replayed, message, {"role": "user", "content": "more"}]})
        assistant = next(one for one in upstream.requests[0].body["messages"] if one["role"] == "assistant")
        assert assistant == {"role": "assistant", "content": "Hello.", "reasoning_content": THOUGHT}


def test_a_stored_summary_is_replayed_to_the_chat_model(http, upstream):
    first = create(http, reasoning={"summary": "auto"})
    upstream.requests.clear()
    create(http, previous_response_id=first["id"])

    assert upstream.requests[0].body["messages"][1]["reasoning_content"] == THOUGHT


def test_a_summary_precedes_the_call_that_it_led_to(http, upstream):
    upstream.set_replies(
        FakeUpstream.chat(ModelAnswer(reasoning=THOUGHT, calls=(AnswerCall("look", "{}"),), reason="calls"))
    )
    posted = {"model": "chat", "input": "hi", "tools": [FUNCTION], "reasoning": {"summary": "auto"}, "stream": True}
    events = read_frames(http.post("/v1/responses", json=posted).content)
    check_stream(events)

    thought, call = events[-1]["response"]["output"]
    assert (thought["summary"][0]["text"], call["type"]) == (THOUGHT, "function_call")
    assert "reasoning" not in upstream.requests[0].body, "chat servers have no option for summaries"


def test_a_responses_upstream_writes_the_summaries_itself(http, upstream):
    where = {"output_index": 0, "item_id": "rs_1"}
    upstream.set_replies(
        FakeUpstream.sse(
            {"type": "response.reasoning_text.delta", **where, "content_index": 0, "delta": THOUGHT},
            {"type": "response.reasoning_summary_text.delta", **where, "summary_index": 0, "delta": "A greeting."},
            {"type": "response.completed", "response": {"status": "completed"}},
        )
    )
    [thought] = create(http, model="responses", reasoning={"summary": "concise"})["output"]

    assert upstream.requests[0].body["reasoning"] == {"summary": "concise"}
    assert [part["text"] for part in thought["content"]] == [THOUGHT]
    assert [part["text"] for part in thought["summary"]] == ["A greeting."]


def test_an_unknown_kind_of_summary_is_refused(http):
    refused = http.post("/v1/responses", json={"model": "chat", "input": "hi", "reasoning": {"summary": "long"}})

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "reasoning.summary")
