"""The begin of a stream: a model that fails before its answer, and one that takes long."""

from __future__ import annotations

import asyncio
import json

import pytest
from fixtures_in_process_server import run_in_process_server
from waiting import wait_until_async

pytestmark = pytest.mark.anyio

SCRIPT = {
    "answers": [
        {"when": {"text": "late"}, "reply": [{"delay": 0.3}, {"text": "Hello"}]},
        {
            "when": {"text": "fail"},
            "reply": [{"delay": 0.3}, {"fault": {"status": 429, "code": "rate_limit_exceeded"}}],
        },
        {"when": {"text": "never"}, "reply": [{"delay": 600}]},
    ]
}


@pytest.fixture
async def server(tmp_path):
    script = tmp_path / "late.yaml"
    script.write_text(json.dumps(SCRIPT), encoding="utf-8")
    models = {"scripted": {"kind": "scripted", "script": str(script)}}
    config = {"models": models, "server": {"keep_alive": 0.05}}
    async with run_in_process_server(tmp_path, config) as running:
        yield running


def asked(text: str) -> dict:
    return {"messages": [{"role": "user", "content": text}], "stream": True}


async def test_a_stream_begins_although_the_model_has_not_answered(server):
    answer = await server.http.post("/v1/chat/completions", json=asked("late"))

    assert answer.status_code == 200
    assert answer.text.startswith(": keep-alive\n\n")
    assert '"content":"Hello"' in answer.text
    assert answer.text.endswith("data: [DONE]\n\n")


async def test_a_failure_after_that_is_a_frame_of_the_stream(server):
    answer = await server.http.post("/v1/chat/completions", json=asked("fail"))

    assert answer.status_code == 200
    *_, last = answer.text.strip().split("\n\n")
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "rate_limit_exceeded"


async def test_a_client_that_disconnects_before_the_model_answers_ends_the_response(server):
    active = server.services.active_responses
    server.services.config.server.keep_alive = 60.0
    asking = asyncio.create_task(server.http.post("/v1/chat/completions", json=asked("never")))
    await wait_until_async(lambda: active)
    (run,) = active.values()
    asking.cancel()
    await wait_until_async(lambda: not active)

    assert run.response.status == "cancelled"


async def test_a_client_that_disconnects_from_a_stream_without_an_answer_ends_the_response(server):
    active = server.services.active_responses
    async with server.http.stream("POST", "/v1/chat/completions", json=asked("never")) as answer:
        await anext(answer.aiter_bytes())
        (run,) = active.values()
    await wait_until_async(lambda: not active)

    assert run.response.status == "cancelled"
