from __future__ import annotations

import asyncio

import pytest
from waiting import wait_until_async

from antwort.api.items import read
from antwort.api.responses import InputDetails, OutputDetails, Usage
from antwort.engine.ports import CompactedHistory, ModelFault, ModelRequest
from antwort.models import Upstream
from antwort.models.responses.compaction import ResponsesCompaction
from antwort.models.upstream import Timeouts
from antwort.testing.model import make_request

pytestmark = pytest.mark.anyio

PATH = "v1/responses/compact"
KEPT = {"type": "message", "id": "msg_9", "role": "user", "status": "completed", "content": "Hi", "new_field": 1}
COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA", "created_by": None}


@pytest.fixture
async def client(upstream):
    opened = Upstream(upstream.url, api_key="key", timeouts=Timeouts(read=5.0))
    yield opened
    await opened.aclose()


# ── probe ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "status, expected",
    [(200, True), (400, True), (401, True), (403, True), (422, True), (404, False), (405, False), (501, False)],
)
async def test_the_answer_to_the_probe_is_kept(upstream, client, status, expected):
    upstream.set_replies(upstream.json({"error": {"message": "x"}}, status), path=PATH)
    compaction = ResponsesCompaction(client, model="upstream-name")

    assert [await compaction.is_supported() for _ in range(3)] == [expected] * 3
    [probe] = upstream.requests
    assert (probe.path, probe.body, probe.headers["authorization"]) == (PATH, {}, "Bearer key")


@pytest.mark.parametrize("status", [302, 408, 429, 500, 502, 503])
async def test_a_status_that_does_not_tell_is_asked_again_later(upstream, client, status):
    invalid = upstream.json({"error": {"message": "missing: model"}}, 400)
    upstream.set_replies(upstream.json({"error": {"message": "x"}}, status), invalid, path=PATH)
    compaction = ResponsesCompaction(client)

    assert [await compaction.is_supported() for _ in range(3)] == [False, True, True]
    assert len(upstream.requests) == 2


async def test_a_broken_connection_is_asked_again_later(upstream, client):
    broken = upstream.json({})
    broken.chunks, broken.disconnect = [b"{"], True
    upstream.set_replies(broken, upstream.json({}, 400), path=PATH)
    compaction = ResponsesCompaction(client)

    assert [await compaction.is_supported() for _ in range(3)] == [False, True, True]


async def test_an_unreachable_upstream_does_not_support_compaction_for_now(unused_port):
    client = Upstream(f"http://127.0.0.1:{unused_port}/v1")

    assert not await ResponsesCompaction(client).is_supported()
    await client.aclose()


async def test_a_silent_upstream_does_not_support_compaction_for_now(upstream, client):
    silent = upstream.json({})
    silent.chunks, silent.pause = [b"{", b"}"], 600.0
    upstream.set_replies(silent, upstream.json({}, 400), path=PATH)
    compaction = ResponsesCompaction(client, probe_timeout=0.05)

    assert not await compaction.is_supported()
    assert await ResponsesCompaction(client).is_supported()


async def test_an_answer_that_is_not_json_does_not_tell(upstream, client):
    upstream.set_replies(upstream.json(b"<html>"), path=PATH)

    assert not await ResponsesCompaction(client).is_supported()


@pytest.mark.parametrize("status, expected", [(400, True), (404, False), (503, False)])
async def test_concurrent_callers_share_one_probe(upstream, client, status, expected):
    upstream.set_replies(upstream.json({}, status), path=PATH)
    compaction = ResponsesCompaction(client)

    assert await asyncio.gather(*(compaction.is_supported() for _ in range(8))) == [expected] * 8
    assert len(upstream.requests) == 1


async def test_a_cancelled_probe_is_repeated_by_the_next_caller(upstream, client):
    silent = upstream.json({})
    silent.chunks, silent.pause = [b"{", b"}"], 600.0
    upstream.set_replies(silent, upstream.json({}, 400), path=PATH)
    compaction = ResponsesCompaction(client)
    first, second = (asyncio.create_task(compaction.is_supported()) for _ in range(2))
    await wait_until_async(lambda: upstream.requests)
    first.cancel()

    assert await second
    assert first.cancelled()
    assert len(upstream.requests) == 2


async def test_a_configured_answer_needs_no_probe(upstream, client):
    assert await ResponsesCompaction(client, is_supported=True).is_supported()
    assert not await ResponsesCompaction(client, is_supported=False).is_supported()
    assert not upstream.requests


# ── compact ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_compact_returns_the_items_unchanged(upstream, client):
    usage = {
        "input_tokens": 900,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 50,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 950,
    }
    answer = {"id": "resp_1", "object": "response.compaction", "output": [KEPT, COMPACTION], "usage": usage}
    upstream.set_replies(upstream.json(answer), path=PATH)
    items = [read({"role": "user", "content": "Hi", "id": "msg_1"}), read(COMPACTION)]
    request = ModelRequest(model="any", items=items, instructions="Be kind.", temperature=0.5)

    compacted = await ResponsesCompaction(client, model="upstream-name").compact(request)

    assert compacted == CompactedHistory([KEPT, COMPACTION], Usage(900, InputDetails(4), 50, OutputDetails(2), 950))
    [sent] = upstream.requests
    assert (sent.path, sent.body) == (
        PATH,
        {
            "model": "upstream-name",
            "input": [{"type": "message", "role": "user", "content": "Hi"}, COMPACTION],
            "instructions": "Be kind.",
        },
    )


async def test_without_an_upstream_name_the_requests_model_is_sent(upstream, client):
    upstream.set_replies(upstream.json({"output": [COMPACTION]}), path=PATH)

    assert (await ResponsesCompaction(client).compact(make_request())).usage == Usage()
    assert upstream.requests[0].body["model"] == "any"


@pytest.mark.parametrize(
    "status, error, fault_status, code",
    [
        (
            400,
            {"code": "invalid_encrypted_content", "message": "The encrypted content for item cmp_7 …"},
            400,
            "invalid_encrypted_content",
        ),
        (400, {"code": "context_length_exceeded"}, 400, "context_length_exceeded"),
        (401, {"message": "Incorrect key"}, 502, "server_error"),
        (404, {"message": "Not Found"}, 502, "server_error"),
        (429, {"code": "rate_limit_exceeded"}, 429, "rate_limit_exceeded"),
        (500, {}, 502, "server_error"),
    ],
)
async def test_error_responses_are_mapped(upstream, client, status, error, fault_status, code):
    upstream.set_replies(upstream.json({"error": error}, status), path=PATH)

    with pytest.raises(ModelFault) as caught:
        await ResponsesCompaction(client).compact(make_request())
    assert (caught.value.status, caught.value.code) == (fault_status, code)
    assert ("cmp_7" in caught.value.message) == (code == "invalid_encrypted_content")


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>",
        [],
        {},
        {"output": "text"},
        {"output": ["text"]},
        {"output": [{"type": "compaction", "id": "cmp_1"}]},
        {"output": [{"type": "compaction", "encrypted_content": "gAAAA"}]},
        {"output": [{"type": "message", "role": "user"}]},
        {"output": [COMPACTION], "usage": {"input_tokens": "many"}},
    ],
)
async def test_a_malformed_answer_is_a_fault(upstream, client, answer):
    upstream.set_replies(upstream.json(answer), path=PATH)

    with pytest.raises(ModelFault, match="could not be read"):
        await ResponsesCompaction(client).compact(make_request())
