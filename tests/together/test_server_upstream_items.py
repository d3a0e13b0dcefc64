"""Upstreams with the Responses API through the server process: items and phases, and errors within the stream."""

from __future__ import annotations

import openai
import pytest
from fake_upstream import FakeUpstream, running_upstream, split_text
from fixtures_server import run_server
from stream_grammar import check_stream, read_frames

from antwort.testing.model import ModelAnswer

ATTEMPTS = 3
COMPLETED = {"type": "response.completed", "response": {"status": "completed"}}
HELLO = FakeUpstream.responses(ModelAnswer(text="Hello."))


@pytest.fixture(scope="module")
def upstream():
    with running_upstream() as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory, upstream):
    model = {"kind": "responses", "base_url": upstream.url, "attempts": ATTEMPTS, "max_backoff": 0, "base_backoff": 0}
    config = {"models": {"model": {**model, "breaker_failures": 0, "max_retry_after": 0}}}
    with run_server(tmp_path_factory.mktemp("server"), config) as running:
        yield running


@pytest.fixture(autouse=True)
def _reset(upstream):
    upstream.reset()


@pytest.fixture
def http(server):
    with server.http() as http:
        yield http


@pytest.fixture
def client(server):
    with server.client() as client:
        yield client


# ── items ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def message_events(index: int, text: str, *, added: str | None, done: str | None) -> list[dict]:
    """A message with the phase of its two item events; null as OpenAI sends it, absent with the phase ''."""

    def item(phase: str | None, content: list) -> dict:
        fields = {"id": f"msg_{index}", "type": "message", "role": "assistant", "content": content}
        return fields if phase == "" else {**fields, "phase": phase}

    where = {"output_index": index, "content_index": 0, "item_id": f"msg_{index}"}
    part = {"type": "output_text", "text": text, "annotations": []}
    return [
        {"type": "response.output_item.added", "output_index": index, "item": item(added, [])},
        {"type": "response.content_part.added", **where, "part": {**part, "text": ""}},
        *({"type": "response.output_text.delta", **where, "delta": delta} for delta in split_text(text)),
        {"type": "response.output_text.done", **where, "text": text},
        {"type": "response.output_item.done", "output_index": index, "item": item(done, [part])},
    ]


THREE_MESSAGES = FakeUpstream.sse(
    *message_events(0, "I look it up.", added="commentary", done="commentary"),
    *message_events(1, "It is 21.", added="", done="final_answer"),
    *message_events(2, "Bye.", added=None, done=None),
    COMPLETED,
)
EXPECTED = [("I look it up.", "commentary"), ("It is 21.", "final_answer"), ("Bye.", None)]


def texts_and_phases(items) -> list[tuple[str, str | None]]:
    return [(item["content"][0]["text"], item.get("phase")) for item in items if item["role"] == "assistant"]


def test_adjacent_messages_and_their_phase_are_kept_in_the_stream_the_storage_and_the_next_turn(http, upstream):
    upstream.set_replies(THREE_MESSAGES, HELLO)
    events = read_frames(http.post("/v1/responses", json={"input": "hello", "stream": True}).content)
    response = events[-1]["response"]
    check_stream(events)
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]

    assert [item.get("phase") for item in added] == ["commentary", None, None]
    assert texts_and_phases(done) == texts_and_phases(response["output"]) == EXPECTED
    assert http.get(f"/v1/responses/{response['id']}").json() == response

    http.post("/v1/responses", json={"input": "thanks", "previous_response_id": response["id"]})
    http.post("/v1/responses", json={"input": [*response["output"], {"role": "user", "content": "x"}], "store": False})
    for request in upstream.requests[1:]:
        assert texts_and_phases(request.body["input"]) == EXPECTED


def test_the_sdk_reads_messages_and_phases(client, upstream):
    upstream.set_replies(THREE_MESSAGES)
    with client.responses.stream(model="model", input="hello") as stream:
        response = stream.get_final_response()

    assert [(item.content[0].text, item.phase) for item in response.output] == EXPECTED


def test_adjacent_reasoning_items_are_kept_with_their_encrypted_content(http, upstream):
    reasoning = [
        {"id": f"rs_{index}", "type": "reasoning", "summary": [], "encrypted_content": f"gAAAA-{index}"}
        for index in (0, 1)
    ]
    done = [
        {"type": "response.output_item.done", "output_index": index, "item": item}
        for index, item in enumerate(reasoning)
    ]
    upstream.set_replies(FakeUpstream.sse(*done, *message_events(2, "Hi.", added="", done=""), COMPLETED), HELLO)
    response = http.post("/v1/responses", json={"input": "hello"}).json()
    http.post("/v1/responses", json={"input": "thanks", "previous_response_id": response["id"]})

    assert [item.get("encrypted_content") for item in response["output"]] == ["gAAAA-0", "gAAAA-1", None]
    sent = upstream.requests[1].body["input"]
    assert [item["encrypted_content"] for item in sent if item["type"] == "reasoning"] == ["gAAAA-0", "gAAAA-1"]


def test_the_parts_of_a_summary_stay_separate_in_the_stream_the_storage_and_the_next_turn(http, upstream):
    texts = ["I look it up.", "I add."]
    parts = [{"type": "summary_text", "text": text} for text in texts]
    summary = [
        {"type": f"response.reasoning_summary_text.{step}", "output_index": 0, "summary_index": index, name: text}
        for index, whole in enumerate(texts)
        for step, name, text in (*(("delta", "delta", text) for text in split_text(whole)), ("done", "text", whole))
    ]
    item = {"id": "rs_0", "type": "reasoning", "summary": parts, "encrypted_content": "gAAAA"}
    done = {"type": "response.output_item.done", "output_index": 0, "item": item}
    upstream.set_replies(FakeUpstream.sse(*summary, done, COMPLETED), HELLO)
    events = read_frames(http.post("/v1/responses", json={"input": "hello", "stream": True}).content)
    response = events[-1]["response"]
    check_stream(events)
    http.post("/v1/responses", json={"input": "thanks", "previous_response_id": response["id"]})

    groups = [event for event in events if event["type"].startswith("response.reasoning_summary_part.")]
    assert [(event["type"].rpartition(".")[2], event["summary_index"]) for event in groups] == [
        ("added", 0),
        ("done", 0),
        ("added", 1),
        ("done", 1),
    ]
    assert [event["part"]["text"] for event in groups] == ["", texts[0], "", texts[1]]
    assert response["output"][0]["summary"] == parts
    assert http.get(f"/v1/responses/{response['id']}").json() == response
    [replayed] = [one for one in upstream.requests[1].body["input"] if one["type"] == "reasoning"]
    assert replayed["summary"] == parts


# ── errors within the stream ─────────────────────────────────────────────────────────────────────────────────────────

CREATED = {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}}
SECRET = "org-secret at 10.0.0.7"


def nested(code: str) -> dict:
    return {"type": "error", "error": {"type": code, "code": code, "message": SECRET, "param": None}}


def flat(code: str) -> dict:
    return {"type": "error", "code": code, "message": SECRET, "param": None}


def failed(code: str) -> dict:
    return {"type": "response.failed", "response": {"status": "failed", "error": {"code": code, "message": SECRET}}}


@pytest.mark.parametrize("event", [nested, flat, failed])
def test_insufficient_quota_within_the_stream_is_not_retried_and_keeps_its_code(http, client, upstream, event):
    upstream.set_replies(FakeUpstream.sse(CREATED, event("insufficient_quota")))
    refused = http.post("/v1/responses", json={"input": "hello"})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["type"]) == (429, "insufficient_quota", "insufficient_quota")
    assert refused.headers["x-should-retry"] == "false"
    assert "10.0.0.7" not in refused.text

    events = read_frames(http.post("/v1/responses", json={"input": "hello", "stream": True}).content)
    assert [one["type"] for one in events[-2:]] == ["error", "response.failed"]
    assert (events[-2]["error"]["code"], events[-1]["response"]["error"]["code"]) == ("insufficient_quota",) * 2

    with pytest.raises(openai.RateLimitError, match="quota") as caught:
        client.with_options(max_retries=2).responses.create(input="hello")
    assert caught.value.code == "insufficient_quota"
    assert len(upstream.requests) == 3, "one for each request: neither the server nor the SDK retries"


@pytest.mark.parametrize("event", [nested, flat, failed])
@pytest.mark.parametrize(
    "code, status, reported, sent",
    [
        ("rate_limit_exceeded", 429, "rate_limit_exceeded", ATTEMPTS),
        ("server_error", 502, "server_error", ATTEMPTS),
        ("server_is_overloaded", 503, "server_error", ATTEMPTS),
        ("invalid_prompt", 400, "invalid_prompt", 1),
        ("context_length_exceeded", 400, "context_length_exceeded", 1),
        ("model_not_found", 400, "model_not_found", 1),
        ("invalid_api_key", 502, "server_error", 1),
    ],
)
def test_an_error_within_the_stream_has_the_status_of_its_code(http, upstream, event, code, status, reported, sent):
    upstream.set_replies(FakeUpstream.sse(CREATED, event(code)))
    refused = http.post("/v1/responses", json={"input": "hello"})

    assert (refused.status_code, refused.json()["error"]["code"]) == (status, reported)
    assert len(upstream.requests) == sent


def test_an_image_that_the_upstream_refuses_within_the_stream_is_a_400_and_not_retried(http, upstream):
    upstream.set_replies(FakeUpstream.sse(CREATED, failed("invalid_image_url")))

    assert http.post("/v1/responses", json={"input": "hello"}).status_code == 400
    assert len(upstream.requests) == 1


def test_the_wait_of_a_rate_limit_within_the_stream_reaches_the_caller(http, upstream):
    limited = {"type": "error", "code": "rate_limit_exceeded", "message": "Please try again in 11.054s."}
    upstream.set_replies(FakeUpstream.sse(CREATED, limited))
    refused = http.post("/v1/responses", json={"input": "hello"})

    assert (refused.status_code, refused.headers["retry-after"]) == (429, "12")
