from __future__ import annotations

from typing import Any

import pytest
from fixtures_in_process_server import InProcessServer

from antwort.api.errors import ApiError
from antwort.api.events import kind_of
from antwort.api.requests import CreateResponse
from antwort.engine.driver import ResponseRun
from antwort.engine.stores import Owner
from antwort.http.wires.websocket.history import ConnectionHistory

pytestmark = pytest.mark.anyio

US = Owner("us", "key")


async def keep(
    server: InProcessServer, history: ConnectionHistory, text: str, lane: str | None = None, **fields: Any
) -> str:
    """Run a response, and keep it; its id."""
    run = await finished(server, history, text, **fields)
    history.keep(lane, run)
    return run.response.id


async def finished(server: InProcessServer, history: ConnectionHistory, text: str, **fields: Any) -> ResponseRun:
    request = CreateResponse(**{"model": "scripted", "input": text, "store": False, **fields})
    run = await server.services.engine.start(US, request, recent=history)
    await run.finish()
    return run


async def texts(history: ConnectionHistory, response_id: str) -> list[str] | None:
    kept = await history.history(response_id)
    return None if kept is None else [part["text"] for item in kept for part in item["content"]]


async def test_a_chain_has_all_items_and_only_its_newest_response_is_kept(server):
    history = ConnectionHistory(100_000)
    first = await keep(server, history, "one")
    second = await keep(server, history, "two", previous_response_id=first)
    assert await texts(history, second) == ["one", "You said: one", "two", "You said: two"]
    assert await history.history(first) is None


async def test_a_chain_that_begins_in_the_store_is_kept_whole(server):
    history = ConnectionHistory(100_000)
    first = await keep(server, history, "one", store=True)
    assert (await history.history(first), history.size) == (None, 0)
    second = await keep(server, history, "two", previous_response_id=first)
    assert await texts(history, second) == ["one", "You said: one", "two", "You said: two"]


async def test_a_stored_response_ends_what_its_lane_has_kept(server):
    history = ConnectionHistory(100_000)
    first = await keep(server, history, "one")
    await keep(server, history, "two", store=True)
    assert await history.history(first) is None


async def test_a_chain_is_whole_also_if_its_lane_went_on_meanwhile(server):
    history = ConnectionHistory(100_000)
    first = await keep(server, history, "one", "a")
    fork = await finished(server, history, "fork", previous_response_id=first)
    await keep(server, history, "two", "a", previous_response_id=first)
    history.keep("b", fork)
    assert await texts(history, fork.response.id) == ["one", "You said: one", "fork", "You said: fork"]


async def test_only_a_response_of_the_same_lane_is_evicted(server):
    history = ConnectionHistory(100_000)
    first = await keep(server, history, "one", "a")
    for lane, evicted in (("b", first), (None, first), ("a", None), ("a", "resp_other")):
        history.evict(lane, evicted)
        assert await history.history(first) is not None
    history.evict("a", first)
    assert (await history.history(first), history.size) == (None, 0)


async def test_above_the_limit_the_first_one_is_dropped_and_a_larger_one_is_not_kept(server):
    history = ConnectionHistory(3000)
    ids = [await keep(server, history, "x" * 400, lane) for lane in "abc"]
    assert [await history.history(one) is not None for one in ids] == [False, True, True]
    assert 0 < history.size <= 3000
    large = await keep(server, history, "x" * 3000, "d")
    assert await history.history(large) is None
    assert await history.history(ids[2]) is not None


async def test_a_compaction_drops_what_is_before_it(server):
    history = ConnectionHistory(1_000_000)
    first = await keep(server, history, "x" * 50_000)
    before = history.size
    request = {"input": [{"type": "compaction_trigger"}], "previous_response_id": first}
    run = await finished(server, history, "", **request)
    history.keep(None, run)
    assert [item["type"] for item in await history.history(run.response.id) or []] == ["compaction"]
    assert before > 100_000
    following = await finished(server, history, "on", previous_response_id=run.response.id)
    assert following.response.status == "completed"
    assert len(following.context.before) > 0


# ── the engine ───────────────────────────────────────────────────────────────────────────────────────────────────────


class RecentChain:
    """One response that is not stored."""

    async def history(self, response_id: str) -> list[dict[str, Any]] | None:
        return [message("msg_old", "old")] if response_id == RECENT else None


RECENT = "resp_" + "1" * 32


def message(identifier: str, text: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    return {"id": identifier, "type": "message", "role": "user", "status": "completed", "content": content}


async def test_a_stored_response_has_the_items_of_recent_ones_as_its_input(server):
    engine = server.services.engine
    run = await engine.start(
        US, CreateResponse(model="scripted", input="hello", previous_response_id=RECENT), recent=RecentChain()
    )
    await run.finish()
    chain = await engine.store.history(US, run.response.id)
    assert [item["content"][0]["text"] for item in chain] == ["old", "hello", "You said: hello"]
    following = await engine.start(
        US, CreateResponse(model="scripted", input="hello", previous_response_id=run.response.id), recent=RecentChain()
    )
    assert [item.raw for item in following.context.before] == chain
    assert (following.context.previous, following.context.is_previous_stored) == (chain, True)


async def test_a_response_that_is_not_recent_is_missing(server):
    engine = server.services.engine
    with pytest.raises(ApiError, match="not found") as refused:
        await engine.start(
            US,
            CreateResponse(model="scripted", input="hello", previous_response_id="resp_" + "2" * 32),
            recent=RecentChain(),
        )
    assert refused.value.code == "previous_response_not_found"


@pytest.mark.parametrize("store", [True, False])
async def test_without_generation_a_response_is_complete_and_can_be_continued(server, store):
    engine = server.services.engine
    run = await engine.start(US, CreateResponse(model="scripted", input="hello", store=store), generate=False)
    events = [kind_of(event) async for event in run.events()]
    assert events == ["response.created", "response.in_progress", "response.completed"]
    assert (run.response.status, run.response.output) == ("completed", [])
    assert [item["content"][0]["text"] for item in run.items] == ["hello"]
    assert (await engine.store.history(US, run.response.id) or []) == (run.items if store else [])
