"""Errors of POST /v1/responses when the store fails."""

from __future__ import annotations

import asyncio
import json

import pytest
from fixtures_in_process_server import locked_database

pytestmark = pytest.mark.anyio


def parse_events(stream: str) -> list[dict]:
    return [json.loads(line.removeprefix("data: ")) for line in stream.splitlines() if line.startswith("data: ")]


async def test_a_completed_response_that_cannot_be_stored_must_not_be_retried(server, tmp_path):
    conversation = (await server.http.post("/v1/conversations", json={})).json()
    # With `store: false` the first write is the conversation, after the response has completed.
    body = {"input": "hello", "store": False, "conversation": conversation["id"]}
    async with locked_database(tmp_path):
        blocking, streamed = await asyncio.gather(
            server.http.post("/v1/responses", json=body),
            server.http.post("/v1/responses", json={**body, "stream": True}),
        )

    assert (blocking.status_code, blocking.headers["x-should-retry"]) == (503, "false")
    assert "before you send the request again" in blocking.json()["error"]["message"]

    *before, error, last = parse_events(streamed.text)
    assert [event["sequence_number"] for event in (*before, error, last)] == list(range(len(before) + 2))
    assert (error["type"], error["error"]["code"]) == ("error", "unavailable")
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"]["message"] == error["error"]["message"]
    assert last["response"]["id"] == before[0]["response"]["id"]


async def test_a_response_that_cannot_be_created_may_be_retried(server, tmp_path):
    async with locked_database(tmp_path):
        answer = await server.http.post("/v1/responses", json={"input": "hello"})

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert "x-should-retry" not in answer.headers
