from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from fixtures_sealing import tenant_sealer

from antwort.api import items
from antwort.api.errors import ApiError
from antwort.api.requests import CreateResponse
from antwort.api.responses import initial_response
from antwort.engine.compaction.opening import SealedWindow, TenantSealer
from antwort.engine.context import Context, check_outputs, load_context, normalize_items
from antwort.engine.ports import ChosenModel
from antwort.engine.stores import (
    ConversationRecord,
    Owner,
    Store,
    StoredResponse,
)
from antwort.models.scripted.model import Scripted
from antwort.models.scripted.script import parse_script
from antwort.storage import open_store

pytestmark = pytest.mark.anyio

US, THEM = Owner("us", "key"), Owner("them", "key")


@pytest.fixture
def anyio_backend():
    return "asyncio"


@asynccontextmanager
async def open_test_store(directory):
    store = await open_store(f"sqlite:///{directory}/antwort.db", directory / "blobs")
    try:
        yield store
    finally:
        await store.aclose()


@pytest.fixture
async def store(tmp_path):
    async with open_test_store(tmp_path) as store:
        yield store


def message(identifier: str, text: str, role: str = "user") -> dict:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"id": identifier, "type": "message", "role": role, "content": [{"type": kind, "text": text}]}


async def stored(store: Store, identifier: str, *given: dict, previous: str | None = None) -> None:
    """A response whose output is its own id."""
    request = CreateResponse(previous_response_id=previous)
    response = initial_response(request, identifier=identifier, model="m", created_at=1)
    await store.begin_response(US, StoredResponse(response=response, input=list(given)))
    response.output, response.status = [message(f"msg_of_{identifier}", identifier, "assistant")], "completed"
    await store.finish_response(US, response)


MODEL = ChosenModel("m", Scripted(parse_script("answers: []")), "m")


def texts(given: list[items.Item]) -> list[str]:
    return [item.raw["content"][0]["text"] for item in given]


async def refusal(request: CreateResponse, owner: Owner, store: Store) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await load_context(request, owner, store, tenant_sealer(), MODEL)
    return caught.value


async def test_a_string_input_is_a_user_message_with_id_and_parts(store):
    context = await load_context(CreateResponse(input="hello"), US, store, tenant_sealer(), MODEL)

    assert context.before == []
    raw = context.given[0].raw
    assert raw["id"].startswith("msg_")
    assert {**raw, "id": ""} == {
        "id": "",
        "type": "message",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": "hello"}],
    }


async def test_previous_responses_come_first_in_order(store):
    await stored(store, "resp_1", message("msg_1", "one"))
    await stored(store, "resp_2", message("msg_2", "two"), previous="resp_1")
    context = await load_context(
        CreateResponse(input="three", previous_response_id="resp_2"), US, store, tenant_sealer(), MODEL
    )

    assert texts(context.before) == ["one", "resp_1", "two", "resp_2"]
    assert texts(context.history) == ["one", "resp_1", "two", "resp_2", "three"]


async def test_conversation_items_come_first(store):
    await store.create_conversation(US, ConversationRecord("conv_1", 1, {}), [message("msg_1", "before")])
    context = await load_context(CreateResponse(input="now", conversation="conv_1"), US, store, tenant_sealer(), MODEL)

    assert texts(context.history) == ["before", "now"]


async def test_references_are_resolved(store):
    await stored(store, "resp_1", message("msg_1", "one"))
    given = [{"type": "item_reference", "id": "msg_1"}, {"id": "msg_of_resp_1"}, {"role": "user", "content": "x"}]
    context = await load_context(CreateResponse(input=given), US, store, tenant_sealer(), MODEL)

    assert texts(context.given) == ["one", "resp_1", "x"]
    assert context.given[0].raw["id"] == "msg_1"


async def test_a_missing_object_and_one_of_another_owner_are_named(store):
    await stored(store, "resp_1", message("msg_1", "one"))
    await store.create_conversation(US, ConversationRecord("conv_1", 1, {}), [])
    for owner, suffix in ((US, "_not"), (THEM, "")):
        chain = await refusal(CreateResponse(input="x", previous_response_id="resp_1" + suffix), owner, store)
        conversation = await refusal(CreateResponse(input="x", conversation="conv_1" + suffix), owner, store)
        reference = await refusal(CreateResponse(input=[{"id": "msg_1" + suffix}]), owner, store)

        assert (chain.status, chain.code, chain.param) == (400, "previous_response_not_found", "previous_response_id")
        assert (conversation.status, conversation.code) == (404, "not_found")
        assert (reference.status, reference.param) == (404, "input[0]")


async def test_an_item_without_id_gets_one_with_the_prefix_of_its_type(store):
    given = [
        {"type": "message", "role": "user", "content": "x", "id": "mine"},
        {"type": "message", "role": "assistant", "content": "x", "id": ""},
        {"type": "reasoning", "summary": [], "encrypted_content": "sealed", "id": None},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "of the future", "whatever": [1]},
    ]
    taken = await normalize_items([items.read(raw) for raw in given], US, store, "input")

    assert [item.raw["id"].partition("_")[0] for item in taken] == ["mine", "msg", "rs", "fc", "msg"]
    assert taken[1].raw["content"] == [{"type": "output_text", "text": "x", "annotations": [], "logprobs": []}]
    assert taken[4].raw["whatever"] == [1]


def called(call_id: str) -> items.Item:
    return items.read({"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"})


def answered(call_id: str, kind: str = "function_call_output") -> items.Item:
    return items.read({"type": kind, "call_id": call_id, "output": "x"})


async def test_an_output_needs_its_call_in_the_history():
    check_outputs(Context([called("c")], [answered("c")]))
    check_outputs(Context([], [called("c"), answered("c")]))
    check_outputs(Context([answered("lost")], []))  # items from earlier requests are not checked

    with pytest.raises(ApiError, match="No tool call found for shell call output with call_id d"):
        check_outputs(Context([called("c")], [answered("c"), answered("d", "shell_call_output")]))


async def test_an_output_without_a_call_id_is_refused():
    strange = items.read({"type": "shell_call", "call_id": [1], "action": {}})  # as it may have been stored
    check_outputs(Context([strange], [called("c"), answered("c")]))

    with pytest.raises(ApiError, match="No tool call found"):
        check_outputs(Context([called("c")], [items.read({"type": "shell_call_output", "call_id": {}})]))


async def test_parsing_many_items_does_not_block_the_event_loop(store):
    turns = []
    asyncio.get_running_loop().call_soon(turns.append, 1)
    context = await load_context(
        CreateResponse(input=[{"role": "user", "content": "x"}] * 1000), US, store, tenant_sealer(), MODEL
    )

    assert len(context.given) == 1000
    assert turns == [1]


async def test_a_local_shell_output_names_its_call_by_id():
    call = items.read({"type": "local_shell_call", "id": "lsh_1", "call_id": "c", "action": {"command": ["ls"]}})
    for name in ("id", "call_id"):
        check_outputs(Context([call], [items.read({"type": "local_shell_call_output", name: "c", "output": "x"})]))

    with pytest.raises(ApiError, match="local shell call output with call_id d"):
        check_outputs(Context([call], [items.read({"type": "local_shell_call_output", "id": "d", "output": "x"})]))


# ── compaction ───────────────────────────────────────────────────────────────────────────────────────────────────────


def sealed(sealer: TenantSealer, *window: dict) -> dict:
    token = sealer.seal("cmp_1", SealedWindow(list(window)))
    return {"type": "compaction", "id": "cmp_1", "encrypted_content": token}


async def test_a_compaction_item_of_the_request_replaces_what_is_before_it(store):
    await stored(store, "resp_1", message("msg_1", "one"))
    sealer = tenant_sealer()
    given = [{"role": "user", "content": "two"}, sealed(sealer, message("msg_w", "window")), message("msg_3", "three")]
    context = await load_context(CreateResponse(input=given, previous_response_id="resp_1"), US, store, sealer, MODEL)

    assert texts(context.history) == ["window", "three"]
    assert texts(context.visible) == ["three"]
    assert [item.type for item in context.given] == ["message", "compaction", "message"]
    assert not context.is_compaction


async def test_a_trigger_is_no_visible_item(store):
    given = [{"role": "user", "content": "one"}, {"type": "compaction_trigger"}]
    context = await load_context(CreateResponse(input=given), US, store, tenant_sealer(), MODEL)

    assert context.is_compaction
    assert texts(context.history) == ["one"]
    assert context.given[-1].raw["id"].startswith("cmp_")


async def test_a_trigger_right_after_a_compaction_item(store):
    sealer = tenant_sealer()
    given = [sealed(sealer, message("msg_w", "window")), {"type": "compaction_trigger"}]
    context = await load_context(CreateResponse(input=given), US, store, sealer, MODEL)

    assert context.is_compaction
    assert texts(context.history) == ["window"]


async def test_a_trigger_must_be_the_last_item(store):
    given = [{"role": "user", "content": "a"}, {"type": "compaction_trigger"}, {"role": "user", "content": "b"}]
    error = await refusal(CreateResponse(input=given), US, store)

    assert (error.status, error.param) == (400, "input[1]")


async def test_a_compaction_item_by_reference_is_opened(store):
    sealer = tenant_sealer()
    await stored(store, "resp_1", sealed(sealer, message("msg_w", "window")))
    context = await load_context(
        CreateResponse(input=[{"type": "item_reference", "id": "cmp_1"}, {"role": "user", "content": "x"}]),
        US,
        store,
        sealer,
        MODEL,
    )

    assert texts(context.history) == ["window", "x"]


async def test_outputs_of_calls_in_the_window_are_accepted_and_replaced_outputs_are_not_checked(store):
    sealer = tenant_sealer()
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "x"}
    lost = {"type": "function_call_output", "call_id": "lost", "output": "x"}
    context = await load_context(CreateResponse(input=[lost, sealed(sealer, call), output]), US, store, sealer, MODEL)
    check_outputs(context)
    context = await load_context(CreateResponse(input=[sealed(sealer, call), lost]), US, store, sealer, MODEL)
    with pytest.raises(ApiError, match="call_id lost"):
        check_outputs(context)


async def test_a_message_with_the_id_of_a_compaction_item_is_refused(store):
    error = await refusal(CreateResponse(input=[{"role": "user", "id": "cmp_1", "content": "no summary"}]), US, store)

    assert (error.status, error.param) == (400, "input[0].id")


# ── outputs of calls ─────────────────────────────────────────────────────────────────────────────────────────────────


def code_call(**fields) -> dict:
    return {"type": "code_interpreter_call", "id": "ci_1", "container_id": "cntr_1", "code": "1", **fields}


@pytest.mark.parametrize(
    "owner, given, is_found",
    [
        (US, {}, True),
        (US, {"outputs": None, "status": "completed"}, True),
        (THEM, {}, False),
        (US, {"code": "2"}, False),
        (US, {"container_id": "cntr_2"}, False),
        (US, {"id": "ci_2"}, False),
        (US, {"id": "msg_of_resp_1"}, False),
        (US, {"outputs": []}, False),
    ],
)
async def test_a_code_call_without_outputs_gets_those_of_the_stored_call(store, owner, given, is_found):
    outputs = [{"type": "logs", "logs": "stored"}]
    await stored(store, "resp_1", code_call(outputs=outputs))
    read = [items.read(code_call(**given)), items.read({"type": "item_reference", "id": "msg_of_resp_1"})]
    taken = await normalize_items(read if owner is US else read[:1], owner, store, "items")

    assert (taken[0].raw.get("outputs") == outputs) is is_found


SEARCHED = {"type": "search", "query": "tea", "queries": ["tea"]}


def search_call(**fields) -> dict:
    return {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": SEARCHED, **fields}


@pytest.mark.parametrize(
    "owner, given, is_found",
    [
        (US, {}, True),
        (US, {"action": {**SEARCHED, "sources": None}, "results": None}, True),
        (US, {"action": {**SEARCHED, "sources": [{"type": "url", "url": "https://other.example/"}]}}, True),
        (US, {"action": {**SEARCHED, "query": "coffee"}}, False),
        (US, {"action": None}, False),
        (US, {"results": []}, False),
        (US, {"id": "ws_2"}, False),
        (THEM, {}, False),
    ],
)
async def test_a_web_search_without_results_gets_those_of_the_stored_call(store, owner, given, is_found):
    results = [{"index": 1, "url": "https://tea.example/", "title": "Tea", "text": "Oolong."}]
    sources = [{"type": "url", "url": "https://tea.example/"}]
    await stored(store, "resp_1", search_call(action={**SEARCHED, "sources": sources}, results=results))
    taken = await normalize_items([items.read(search_call(**given))], owner, store, "items")

    assert (taken[0].raw.get("results") == results) is is_found


async def test_the_input_of_a_resumed_response_is_not_validated_again(store):
    old = [{"type": "of the future", "id": "x!"}, message("msg_1", "one"), message("msg_1", "one")]
    request = CreateResponse(input=old)
    context = await load_context(request, US, store, tenant_sealer(), MODEL, is_resumed=True)

    assert [item.id for item in context.given] == ["x!", "msg_1", "msg_1"]
    assert (await refusal(request, US, store)).param == "input[0].type"
