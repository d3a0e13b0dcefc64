from __future__ import annotations

import pytest

from antwort.api.items import read
from antwort.engine.ports import CompactionPiece, Finished, ModelFault, ModelRequest
from antwort.models import Responses, Upstream
from antwort.models.tokens import estimate_request
from antwort.models.upstream import Timeouts
from antwort.testing.model import ModelAnswer, collect, fold, make_request

pytestmark = pytest.mark.anyio

KEY = "sk-very-secret"
COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA"}


@pytest.fixture
def model(upstream):
    return Responses(Upstream(upstream.url, api_key=KEY, timeouts=Timeouts(read=1.0)), model="upstream-name")


async def ask(model):
    try:
        return fold(await collect(model, make_request()))
    finally:
        await model.aclose()


async def test_request_and_answer(upstream, model):
    upstream.set_replies(upstream.responses(ModelAnswer(reasoning="Hm.", text="Hello")))
    answer = await ask(model)

    [request] = upstream.requests
    assert (request.path, request.headers["authorization"], request.body["store"]) == (
        "v1/responses",
        f"Bearer {KEY}",
        False,
    )
    assert (answer.text, answer.sealed) == ("Hello", ("gAAAA-sealed",))


async def test_error_responses_are_mapped_without_upstream_text(upstream, model):
    upstream.set_replies(upstream.json({"error": {"message": f"Incorrect key {KEY}", "code": "invalid_api_key"}}, 401))

    with pytest.raises(ModelFault) as caught:
        await ask(model)
    assert caught.value.status == 502
    assert KEY not in caught.value.message


async def test_a_broken_connection_is_a_fault(upstream, model):
    reply = upstream.responses(ModelAnswer(text="Hello"))
    reply.chunks, reply.disconnect = reply.chunks[:-1], True
    upstream.set_replies(reply)

    with pytest.raises(ModelFault, match="ended before"):
        await ask(model)


async def test_count_tokens(upstream, model):
    counted = upstream.json({"object": "response.input_tokens", "input_tokens": 11})
    upstream.set_replies(counted, path="v1/responses/input_tokens")
    assert await model.count_tokens(make_request()) == 11

    for invalid in (upstream.json({"odd": 1}), upstream.json(b"<html>"), upstream.json({}, 500)):
        upstream.set_replies(invalid, path="v1/responses/input_tokens")
        assert await model.count_tokens(make_request()) == estimate_request(make_request())
    await model.aclose()


async def test_a_server_without_token_count_is_asked_once(upstream, model):
    for _ in range(2):
        assert await model.count_tokens(make_request()) == estimate_request(make_request())
    assert len(upstream.requests) == 1
    await model.aclose()


async def test_a_compaction_item_of_an_answer_is_sent_back_unchanged(upstream, model):
    item = {"type": "response.output_item.done", "output_index": 0, "item": COMPACTION}
    upstream.set_replies(upstream.sse(item, {"type": "response.completed", "response": {}}))
    hello = read({"role": "user", "content": "Hi"})

    pieces = await collect(model, ModelRequest(model="any", items=[hello], compaction_trigger=True))
    assert pieces == [CompactionPiece(COMPACTION), Finished()]
    await collect(model, ModelRequest(model="any", items=[read(COMPACTION), hello], compact_threshold=8000))
    await model.aclose()

    first, second = (request.body for request in upstream.requests)
    assert first["input"][-1] == {"type": "compaction_trigger"}
    assert "context_management" not in first
    assert second["input"][0] == COMPACTION
    assert second["context_management"] == [{"type": "compaction", "compact_threshold": 8000}]


async def test_invalid_encrypted_content_is_a_400_that_names_the_item(upstream, model):
    error = {
        "message": "The encrypted content for item cmp_1 could not be verified.",
        "code": "invalid_encrypted_content",
    }
    refusal = upstream.json({"error": {**error, "type": "invalid_request_error"}}, 400)
    failed = upstream.sse({"type": "response.failed", "response": {"error": error}})
    for reply in (refusal, failed):
        upstream.set_replies(reply)
        with pytest.raises(ModelFault, match="item cmp_1") as caught:
            await collect(model, make_request())
        assert (caught.value.status, caught.value.code) == (400, "invalid_encrypted_content")
    await model.aclose()
