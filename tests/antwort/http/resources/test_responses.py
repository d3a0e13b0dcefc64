"""What a caller is told when the store fails under a response."""

from __future__ import annotations

import asyncio
import json

import pytest
from fixtures_in_process_server import locked_database

pytestmark = pytest.mark.anyio


def told(stream: str) -> list[dict]:
    return [json.loads(line.removeprefix("data: ")) for line in stream.splitlines() if line.startswith("data: ")]


async def test_work_whose_end_cannot_be_stored_is_not_to_be_done_twice(stage, tmp_path):
    begun = (await stage.http.post("/v1/conversations", json={})).json()
    # Without `store` there is nothing to write before the work is done, and then the conversation.
    asked = {"input": "hello", "store": False, "conversation": begun["id"]}
    async with locked_database(tmp_path):
        whole, streamed = await asyncio.gather(
            stage.http.post("/v1/responses", json=asked),
            stage.http.post("/v1/responses", json={**asked, "stream": True}),
        )

    assert (whole.status_code, whole.headers["x-should-retry"]) == (503, "false")
    assert "before you ask again" in whole.json()["error"]["message"]

    *before, error, last = told(streamed.text)
    assert [event["sequence_number"] for event in (*before, error, last)] == list(range(len(before) + 2))
    assert (error["type"], error["error"]["code"]) == ("error", "unavailable")
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"]["message"] == error["error"]["message"]
    assert last["response"]["id"] == before[0]["response"]["id"]


async def test_what_cannot_be_begun_may_be_asked_again(stage, tmp_path):
    async with locked_database(tmp_path):
        answer = await stage.http.post("/v1/responses", json={"input": "hello"})

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert "x-should-retry" not in answer.headers
