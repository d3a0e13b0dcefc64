"""Failures of the upstream: mapped to API errors without leaking its messages, and no response is stuck."""

from __future__ import annotations

import openai
import pytest
from fake_upstream import CannedReply, FakeUpstream, running_upstream, sse_frame
from fixtures_sdk import CLIENT_KINDS, sdk_client
from fixtures_server import run_server, stored_statuses
from stream_grammar import check_stream, read_frames
from waiting import wait_until

from antwort.testing.model import ModelAnswer

SECRET = "sk-of-the-upstream at 10.0.0.7"
HELLO = FakeUpstream.chat(ModelAnswer(text="Hello."))


def text_chunk(text: str, reason: str | None = None) -> bytes:
    return sse_frame({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}]})


def error_response(status: int, code: str = "", headers: dict[str, str] | None = None) -> CannedReply:
    return FakeUpstream.json({"error": {"message": SECRET, "type": "x", "code": code}}, status, headers)


# By name: the reply of the upstream, and the expected status, code and retry-after.
BEFORE_OUTPUT = {
    "internal error": (error_response(500), 502, "server_error", None),
    "overloaded": (error_response(503, headers={"retry-after": "30"}), 503, "server_error", "30"),
    "invalid key": (error_response(401, "invalid_api_key"), 502, "server_error", None),
    "too many requests": (error_response(429, headers={"retry-after": "30"}), 429, "rate_limit_exceeded", "30"),
    "rate limit of Azure": (
        FakeUpstream.json(
            {"error": {"code": "429", "message": "Exceeded call rate limit, see https://aka.ms/oai/quotaincrease"}},
            429,
            {"retry-after": "1"},
        ),
        429,
        "rate_limit_exceeded",
        "1",
    ),
    "rate limit of Gemini": (
        FakeUpstream.json(
            [{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "Quota exceeded … per minute"}}], 429
        ),
        429,
        "rate_limit_exceeded",
        None,
    ),
    "exceeded quota": (error_response(429, "insufficient_quota"), 429, "insufficient_quota", None),
    "too long": (error_response(400, "context_length_exceeded"), 400, "context_length_exceeded", None),
    "unknown model": (error_response(404, "model_not_found"), 400, "model_not_found", None),
    "unknown endpoint": (FakeUpstream.json(b"<html>nginx 10.0.0.7</html>", 404), 502, "server_error", None),
    "invalid JSON": (CannedReply([b"data: {nope\n\n"]), 502, "server_error", None),
    "empty stream": (CannedReply([]), 502, "server_error", None),
    "timeout": (CannedReply([b": wait\n\n"] * 600, pause=0.1), 504, "server_error", None),
}
AFTER_OUTPUT = {
    "disconnect": CannedReply([text_chunk("Half an ")], disconnect=True),
    "truncated stream": CannedReply([text_chunk("Half an ")]),
    "error event": CannedReply([text_chunk("Half an "), sse_frame({"error": {"message": SECRET, "code": 500}})]),
    "invalid JSON after output": CannedReply([text_chunk("Half an "), b"data: {nope\n\n"]),
    "timeout after output": CannedReply([text_chunk("Half an "), *[b": wait\n\n"] * 600], pause=0.1),
}
NAMES = [*BEFORE_OUTPUT, *AFTER_OUTPUT]


@pytest.fixture(scope="module")
def upstream():
    with running_upstream() as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory, upstream):
    """One model for each failure, so that the circuit breaker of one does not affect another."""
    settings = {"kind": "chat_completions", "base_url": upstream.url, "attempts": 1, "timeout": 1.0}
    models = {
        **dict.fromkeys(NAMES, settings),
        "with retries": {**settings, "attempts": 3, "timeout": 30.0},
        "circuit breaker": {**settings, "timeout": 30.0},
        "unreachable": {**settings, "base_url": "http://127.0.0.1:9/v1"},
    }
    models = {name: dict(model) for name, model in models.items()}
    with run_server(tmp_path_factory.mktemp("server"), {"models": models}) as running:
        yield running


@pytest.fixture(params=CLIENT_KINDS)
def client(request, server):
    with sdk_client(server.url, request.param) as client:
        yield client


@pytest.fixture(autouse=True)
def _check_nothing_stuck_and_nothing_leaked(server, upstream):
    upstream.reset()
    yield
    wait_until(lambda: not {"queued", "in_progress"} & set(stored_statuses(server).values()))
    with server.http() as http:
        wait_until(lambda: "antwort_responses_running 0.0" in http.get("/metrics").text)
    assert SECRET not in server.read_log()


@pytest.mark.parametrize("name", BEFORE_OUTPUT)
def test_a_failure_before_any_output_is_an_api_error(client, upstream, name):
    reply, status, code, wait = BEFORE_OUTPUT[name]
    upstream.set_replies(reply)
    with pytest.raises(openai.APIStatusError) as caught:
        client.responses.create(model=name, input="hello")

    assert (caught.value.status_code, caught.value.code) == (status, code)
    assert caught.value.response.headers.get("retry-after") == wait
    assert "10.0.0.7" not in caught.value.response.text


@pytest.mark.parametrize("name", AFTER_OUTPUT)
def test_a_failure_after_output_keeps_the_partial_output(client, upstream, name):
    upstream.set_replies(AFTER_OUTPUT[name])
    response = client.responses.create(model=name, input="hello")

    assert (response.status, response.error.code) == ("failed", "server_error")
    assert response.output[0].content[0].text == "Half an "
    assert response.output[0].status == "incomplete"
    assert "10.0.0.7" not in response.to_json()
    assert client.responses.retrieve(response.id).to_dict() == response.to_dict()


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("name", ["disconnect", "error event"])
def test_a_failed_stream_ends_with_error_and_response_failed(server, upstream, name, background):
    upstream.set_replies(AFTER_OUTPUT[name])
    body = {"model": name, "input": "hello", "stream": True, "background": background}
    with server.http() as http:
        streamed = http.post("/v1/responses", json=body)
        events = read_frames(streamed.content)
        stored = http.get(f"/v1/responses/{events[0]['response']['id']}").json()

    check_stream(events, background=background)
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-2]["error"]["code"] == "server_error"
    assert stored == events[-1]["response"]


def test_a_temporary_failure_is_retried(client, upstream):
    upstream.set_replies(error_response(500), CannedReply([]), HELLO)
    response = client.responses.create(model="with retries", input="hello")

    assert response.output_text == "Hello."
    assert len(upstream.requests) == 3


def test_an_unreachable_upstream_is_a_502(client):
    with pytest.raises(openai.InternalServerError) as caught:
        client.responses.create(model="unreachable", input="hello")

    assert caught.value.status_code == 502
    assert "cannot be reached" in caught.value.message


def test_the_circuit_breaker_opens_after_repeated_failures(server, upstream):
    upstream.set_replies(error_response(500))
    with server.client() as client:
        for _ in range(5):
            with pytest.raises(openai.InternalServerError):
                client.responses.create(model="circuit breaker", input="hello")
        requests = len(upstream.requests)
        with pytest.raises(openai.InternalServerError) as caught:
            client.responses.create(model="circuit breaker", input="hello")

    assert (caught.value.status_code, len(upstream.requests)) == (503, requests)
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 10


def test_a_client_disconnect_closes_the_upstream_connection(client, upstream):
    upstream.set_replies(CannedReply([text_chunk(f"word{number} ") for number in range(600)], pause=0.1))
    with client.responses.create(model="with retries", input="hello", stream=True) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                break

    assert upstream.client_disconnected.wait(10)
