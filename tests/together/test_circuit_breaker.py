"""Circuit breaker and retries through the server process, with a fake upstream that fails and recovers."""

from __future__ import annotations

import openai
import pytest
from fake_upstream import FakeUpstream, running_upstream
from fixtures_server import run_server

from antwort.testing.model import ModelAnswer

ANSWER = FakeUpstream.chat(ModelAnswer(text="Hello."))
ERROR = FakeUpstream.json({"error": {"message": "broken"}}, 500)
FAILURES = 5
"""Consecutive failures that open the breaker."""


@pytest.fixture
def upstream():
    with running_upstream() as upstream:
        yield upstream


@pytest.fixture
def client(tmp_path, upstream):
    model = {"kind": "chat_completions", "base_url": upstream.url, "attempts": 1}
    with run_server(tmp_path, {"models": {"model": model}}) as server, server.client() as client:
        yield client


def fail(client) -> int:
    with pytest.raises(openai.InternalServerError) as caught:
        client.responses.create(model="model", input="hello")
    return caught.value.status_code


@pytest.mark.parametrize("stream", [False, True])
def test_failures_between_successes_never_open_the_breaker(client, upstream, stream):
    for _ in range(FAILURES + 1):
        upstream.set_replies(ERROR)
        assert fail(client) == 502
        upstream.set_replies(ANSWER)
        if stream:
            *_, last = client.responses.create(model="model", input="hello", stream=True)
            assert last.response.output_text == "Hello."
        else:
            assert client.responses.create(model="model", input="hello").output_text == "Hello."

    assert len(upstream.requests) == 2 * (FAILURES + 1)


def test_consecutive_failures_open_the_breaker_and_a_success_resets_the_count(client, upstream):
    upstream.set_replies(ERROR)
    assert [fail(client) for _ in range(FAILURES - 1)] == [502] * (FAILURES - 1)
    upstream.set_replies(ANSWER)
    assert client.responses.create(model="model", input="hello").output_text == "Hello."
    upstream.set_replies(ERROR)
    assert [fail(client) for _ in range(FAILURES)] == [502] * FAILURES

    sent = len(upstream.requests)
    assert fail(client) == 503
    assert len(upstream.requests) == sent
