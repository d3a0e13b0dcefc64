from __future__ import annotations

import pytest

from antwort.engine.ports import ModelFault
from antwort.models import Responses, Timeouts
from antwort.models.tokens import estimate
from antwort.testing.model import WholeAnswer, asking, collect, fold

pytestmark = pytest.mark.anyio

KEY = "sk-very-secret"


@pytest.fixture
def model(upstream):
    return Responses(upstream.url, model="theirs", api_key=KEY, timeouts=Timeouts(read=1.0))


async def ask(model):
    try:
        return fold(await collect(model, asking()))
    finally:
        await model.aclose()


async def test_what_is_sent(upstream, model):
    upstream.plays(upstream.responses(WholeAnswer(reasoning="Hm.", text="Hello")))
    answer = await ask(model)

    [asked] = upstream.asked
    assert (asked.path, asked.headers["authorization"], asked.body["store"]) == ("v1/responses", f"Bearer {KEY}", False)
    assert (answer.text, answer.sealed) == ("Hello", ("gAAAA-sealed",))


async def test_refusals_are_mapped_and_not_leaked(upstream, model):
    upstream.plays(upstream.json({"error": {"message": f"Incorrect key {KEY}", "code": "invalid_api_key"}}, 401))

    with pytest.raises(ModelFault) as caught:
        await ask(model)
    assert caught.value.status == 502
    assert KEY not in caught.value.message


async def test_a_connection_that_breaks(upstream, model):
    play = upstream.responses(WholeAnswer(text="Hello"))
    play.chunks, play.hang_up = play.chunks[:-1], True
    upstream.plays(play)

    with pytest.raises(ModelFault, match="ended before"):
        await ask(model)


async def test_counting(upstream, model):
    counted = upstream.json({"object": "response.input_tokens", "input_tokens": 11})
    upstream.plays(counted, path="v1/responses/input_tokens")
    assert await model.count_tokens(asking()) == 11

    for odd in (upstream.json({"odd": 1}), upstream.json(b"<html>"), upstream.json({}, 500)):
        upstream.plays(odd, path="v1/responses/input_tokens")
        assert await model.count_tokens(asking()) == estimate(asking())
    await model.aclose()


async def test_a_server_that_cannot_count_is_asked_once(upstream, model):
    for _ in range(2):
        assert await model.count_tokens(asking()) == estimate(asking())
    assert len(upstream.asked) == 1
    await model.aclose()
