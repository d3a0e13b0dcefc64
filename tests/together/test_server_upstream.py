"""The real process with an upstream that fails in every way: mapped and not leaked, nothing lost, nothing stuck."""

from __future__ import annotations

import openai
import pytest
from fake_upstream import Loopback, Play, frame, upstreaming
from fixtures_sdk import CLIENT_KINDS, sdk_client
from fixtures_server import run_server, stored_statuses
from stream_grammar import check_stream, read_frames
from waiting import wait_until

from antwort.testing.model import WholeAnswer

SECRET = "sk-of-the-upstream at 10.0.0.7"
HELLO = Loopback.chat(WholeAnswer(text="Hello."))


def says(text: str, reason: str | None = None) -> bytes:
    return frame({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}]})


def refuses(status: int, code: str = "", headers: dict[str, str] | None = None) -> Play:
    return Loopback.json({"error": {"message": SECRET, "type": "x", "code": code}}, status, headers)


# By name: what the upstream does each time, and what our caller is told: status, code, retry-after.
BEFORE_ANYTHING = {
    "broken": (refuses(500), 502, "server_error", None),
    "overloaded": (refuses(503, headers={"retry-after": "30"}), 503, "server_error", "30"),
    "a refused key": (refuses(401, "invalid_api_key"), 502, "server_error", None),
    "too many requests": (refuses(429, headers={"retry-after": "30"}), 429, "rate_limit_exceeded", "30"),
    "a spent quota": (refuses(429, "insufficient_quota"), 502, "server_error", None),
    "too long": (refuses(400, "context_length_exceeded"), 400, "context_length_exceeded", None),
    "no such model": (refuses(404, "model_not_found"), 400, "model_not_found", None),
    "no such endpoint": (Loopback.json(b"<html>nginx 10.0.0.7</html>", 404), 502, "server_error", None),
    "nonsense": (Play([b"data: {nope\n\n"]), 502, "server_error", None),
    "nothing at all": (Play([]), 502, "server_error", None),
    "silence": (Play([b": wait\n\n"] * 600, pause=0.1), 504, "server_error", None),
}
AFTER_SOMETHING = {
    "hangs up": Play([says("Half an ")], hang_up=True),
    "ends too early": Play([says("Half an ")]),
    "an error instead of the rest": Play([says("Half an "), frame({"error": {"message": SECRET, "code": 500}})]),
    "nonsense instead of the rest": Play([says("Half an "), b"data: {nope\n\n"]),
    "silence instead of the rest": Play([says("Half an "), *[b": wait\n\n"] * 600], pause=0.1),
}
NAMES = [*BEFORE_ANYTHING, *AFTER_SOMETHING]


@pytest.fixture(scope="module")
def upstream():
    with upstreaming() as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory, upstream):
    """One model for each way to fail, so that no failure is another's reason to be left alone."""
    once = {"kind": "chat_completions", "base_url": upstream.url, "attempts": 1, "timeout": 1.0}
    models = {
        **dict.fromkeys(NAMES, once),
        "patient": {**once, "attempts": 3, "timeout": 30.0},
        "left alone": {**once, "timeout": 30.0},
        "nobody there": {**once, "base_url": "http://127.0.0.1:9/v1"},
    }
    models = {name: dict(settings) for name, settings in models.items()}
    with run_server(tmp_path_factory.mktemp("server"), {"models": models}) as running:
        yield running


@pytest.fixture(params=CLIENT_KINDS)
def client(request, server):
    with sdk_client(server.url, request.param) as client:
        yield client


@pytest.fixture(autouse=True)
def nothing_stuck_and_nothing_leaked(server, upstream):
    upstream.forget()
    yield
    wait_until(lambda: not {"queued", "in_progress"} & set(stored_statuses(server).values()))
    with server.http() as http:
        wait_until(lambda: "antwort_responses_running 0.0" in http.get("/metrics").text)
    assert SECRET not in server.read_log()


@pytest.mark.parametrize("name", BEFORE_ANYTHING)
def test_a_failure_before_anything_came_is_an_error_in_our_words(client, upstream, name):
    play, status, code, wait = BEFORE_ANYTHING[name]
    upstream.plays(play)
    with pytest.raises(openai.APIStatusError) as caught:
        client.responses.create(model=name, input="hello")

    assert (caught.value.status_code, caught.value.code) == (status, code)
    assert caught.value.response.headers.get("retry-after") == wait
    assert "10.0.0.7" not in caught.value.response.text


@pytest.mark.parametrize("name", AFTER_SOMETHING)
def test_a_failure_in_the_middle_keeps_what_there_was(client, upstream, name):
    upstream.plays(AFTER_SOMETHING[name])
    response = client.responses.create(model=name, input="hello")

    assert (response.status, response.error.code) == ("failed", "server_error")
    assert response.output[0].content[0].text == "Half an "
    assert response.output[0].status == "incomplete"
    assert "10.0.0.7" not in response.to_json()
    assert client.responses.retrieve(response.id).to_dict() == response.to_dict()


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("name", ["hangs up", "an error instead of the rest"])
def test_a_stream_that_fails_says_so_and_ends(server, upstream, name, background):
    upstream.plays(AFTER_SOMETHING[name])
    body = {"model": name, "input": "hello", "stream": True, "background": background}
    with server.http() as http:
        streamed = http.post("/v1/responses", json=body)
        events = read_frames(streamed.content)
        kept = http.get(f"/v1/responses/{events[0]['response']['id']}").json()

    check_stream(events, background=background)
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-2]["error"]["code"] == "server_error"
    assert kept == events[-1]["response"]


def test_an_upstream_that_recovers_is_asked_again_and_nobody_notices(client, upstream):
    upstream.plays(refuses(500), Play([]), HELLO)
    response = client.responses.create(model="patient", input="hello")

    assert response.output_text == "Hello."
    assert len(upstream.asked) == 3


def test_nobody_there_is_said_so(client):
    with pytest.raises(openai.InternalServerError) as caught:
        client.responses.create(model="nobody there", input="hello")

    assert caught.value.status_code == 502
    assert "cannot be reached" in caught.value.message


def test_an_upstream_that_keeps_failing_is_left_alone_for_a_while(server, upstream):
    upstream.plays(refuses(500))
    with server.client() as client:
        for _ in range(5):
            with pytest.raises(openai.InternalServerError):
                client.responses.create(model="left alone", input="hello")
        asked = len(upstream.asked)
        with pytest.raises(openai.InternalServerError) as caught:
            client.responses.create(model="left alone", input="hello")

    assert (caught.value.status_code, len(upstream.asked)) == (503, asked)
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 10


def test_whoever_goes_is_not_answered_by_the_upstream_either(client, upstream):
    upstream.plays(Play([says(f"word{number} ") for number in range(600)], pause=0.1))
    with client.responses.create(model="patient", input="hello", stream=True) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                break

    assert upstream.left_early.wait(10)
