from __future__ import annotations

import asyncio

import pytest
import structlog

from antwort.engine.ports import ModelFault
from antwort.models.upstream import Refusal, Upstream
from antwort.net.sse import ServerEvent

pytestmark = pytest.mark.anyio

KEY = "sk-very-secret"


@pytest.fixture
def way(upstream):
    return Upstream(upstream.url, api_key=KEY, max_event=1000)


async def events(way):
    return [event async for event in way.stream("responses", {"model": "m"})]


async def test_events_come_as_they_are(upstream, way):
    upstream.set_replies(upstream.sse({"a": 1}, "[DONE]"))

    assert await events(way) == [ServerEvent("", b'{"a": 1}'), ServerEvent("", b"[DONE]")]
    await way.aclose()


async def until_done(way):
    seen = []
    async for event in way.stream("responses", {"model": "m"}, over=lambda: seen[-1].data == b"[DONE]"):
        seen.append(event)  # noqa: PERF401 - `over` looks at what has come so far
    return [event.data for event in seen]


async def test_a_connection_that_has_told_all_is_used_again(upstream, way):
    upstream.set_replies(upstream.sse("1", "[DONE]", "2"))

    assert await until_done(way) == await until_done(way) == [b"1", b"[DONE]"]
    await way.aclose()

    first, second = upstream.requests
    assert first.port == second.port


async def test_a_server_that_has_told_all_and_does_not_hang_up_is_not_waited_for(upstream, way):
    upstream.set_replies(upstream.sse("[DONE]", pause=60.0))

    assert await until_done(way) == [b"[DONE]"]
    assert await asyncio.to_thread(upstream.client_disconnected.wait, 10)
    await way.aclose()


async def test_what_is_no_stream_is_one_event(upstream, way):
    upstream.set_replies(upstream.json({"a": 1}))

    assert await events(way) == [ServerEvent("", b'{"a": 1}')]
    await way.aclose()


async def test_a_refusal_keeps_what_it_said_to_itself(upstream, way):
    message = f"no such key: {KEY} " + "x" * 10_000
    upstream.set_replies(upstream.json({"error": {"message": message, "code": f"bad {KEY}"}}, 401))

    with pytest.raises(Refusal) as caught:
        await events(way)
    with structlog.testing.capture_logs() as lines:
        fault = way.fault(caught.value, model="mine")
    await way.aclose()

    assert KEY not in f"{caught.value} {fault} {lines}"
    assert lines[0]["code"] == "bad [key]"
    assert len(str(lines)) < 1000


async def test_one_answer(upstream, way):
    upstream.set_replies(upstream.json({"count": 3}), path="count")
    assert await way.post(f"{upstream.root}/count", {}) == {"count": 3}

    upstream.set_replies(upstream.json(b"<html>"), path="count")
    with pytest.raises(ModelFault, match="could not be read"):
        await way.post(f"{upstream.root}/count", {})

    upstream.set_replies(upstream.json([1] * 10_000), path="count")
    with pytest.raises(ModelFault, match="could not be read"):
        await way.post(f"{upstream.root}/count", {})

    with pytest.raises(Refusal, match="404"):
        await way.post(f"{upstream.root}/elsewhere", {})
    await way.aclose()


async def test_whoever_needs_a_proxy_gets_one(upstream, monkeypatch):
    monkeypatch.setenv("http_proxy", upstream.root)
    upstream.set_replies(upstream.sse("1"))
    way = Upstream("http://model.invalid/v1", max_event=1000)

    assert await events(way) == [ServerEvent("", b"1")]
    assert upstream.requests[0].headers["host"] == "model.invalid"
    await way.aclose()
