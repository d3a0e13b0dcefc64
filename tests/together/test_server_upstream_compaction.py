"""Compaction by an upstream Responses API: all three forms are forwarded, and its items are passed through."""

from __future__ import annotations

import openai
import pytest
from fake_upstream import FakeUpstream, running_upstream
from fixtures_sdk import CLIENT_KINDS, sdk_client
from fixtures_server import run_server
from stream_grammar import check_stream, read_frames

from antwort.testing.model import ModelAnswer

COMPACT_PATH = "v1/responses/compact"
COMPACTION = {"type": "compaction", "id": "cmp_0a1", "encrypted_content": "gAAAAAB-final", "created_by": "upstream"}
TRIGGER = {"type": "compaction_trigger"}
USAGE = {"input_tokens": 900, "output_tokens": 30, "total_tokens": 930}
COMPLETED = {"type": "response.completed", "response": {"status": "completed", "usage": USAGE}}


def user(text: str) -> dict:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def as_items(compacted) -> list[dict]:
    """The output. The SDK expects output messages there, and would warn about the user messages."""
    return [item.to_dict(warnings=False) for item in compacted.output]


def message_events(index: int, text: str) -> list[dict]:
    message = {"type": "message", "id": f"msg_{index}", "role": "assistant", "content": []}
    done = {**message, "content": [{"type": "output_text", "text": text}]}
    where = {"output_index": index, "content_index": 0, "item_id": f"msg_{index}"}
    return [
        {"type": "response.output_item.added", "output_index": index, "item": message},
        {"type": "response.output_text.delta", **where, "delta": text},
        {"type": "response.output_item.done", "output_index": index, "item": done},
    ]


def compaction_events(index: int) -> list[dict]:
    early = {**COMPACTION, "encrypted_content": "gAAAAAB-early"}
    return [
        {"type": "response.output_item.added", "output_index": index, "item": early},
        {"type": "response.compaction.compacting", "output_index": index, "item_id": COMPACTION["id"]},
        {"type": "response.output_item.done", "output_index": index, "item": COMPACTION},
    ]


COMPACTS_WITHIN = FakeUpstream.sse(
    *message_events(0, "Before."), *compaction_events(1), *message_events(2, "After."), COMPLETED
)
COMPACTS_ONLY = FakeUpstream.sse(*compaction_events(0), COMPLETED)
ANSWERS = FakeUpstream.responses(ModelAnswer(text="Hello."))
REFUSED_ITEM = {
    "code": "invalid_encrypted_content",
    "type": "invalid_request_error",
    "message": "The encrypted content for item cmp_0a1 could not be verified. Reason: key 10.0.0.7",
}


@pytest.fixture(scope="module")
def upstream_server():
    with running_upstream() as running:
        yield running


@pytest.fixture
def upstream(upstream_server):
    upstream_server.reset()
    return upstream_server


@pytest.fixture(scope="module")
def server(tmp_path_factory, upstream_server):
    """`asked…` ask the upstream whether it compacts; each keeps its answer, so each is used by one test."""
    responses = {"kind": "responses", "base_url": upstream_server.url, "attempts": 1}
    models = {
        "upstream": {**responses, "compaction": "upstream"},
        "server": {**responses, "compaction": "server"},
        "asked with endpoint": dict(responses),
        "asked without endpoint": dict(responses),
        "chat": {"kind": "chat_completions", "base_url": upstream_server.url, "attempts": 1},
    }
    with run_server(tmp_path_factory.mktemp("server"), {"models": models}) as running:
        yield running


@pytest.fixture(params=CLIENT_KINDS)
def client(request, server):
    with sdk_client(server.url, request.param) as client:
        yield client


def sent_bodies(upstream: FakeUpstream, path: str = "v1/responses") -> list[dict]:
    return [request.body for request in upstream.requests if request.path == path]


# ── the three forms ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_endpoint_returns_the_items_of_the_upstream(client, upstream):
    kept = {**user("My name is Ada."), "id": "msg_upstream", "status": "completed"}
    answer = {"id": "resp_u", "object": "response.compaction", "output": [kept, COMPACTION], "usage": USAGE}
    upstream.set_replies(FakeUpstream.json(answer), path=COMPACT_PATH)
    upstream.set_replies(ANSWERS, path="v1/responses")
    history = [user("My name is Ada."), {"role": "assistant", "content": "Hello Ada."}]

    compacted = client.responses.compact(model="upstream", input=history, instructions="Be kind.")
    window = as_items(compacted)
    client.responses.create(model="upstream", input=[*window, user("Who am I?")], store=False)

    assert compacted.object == "response.compaction"
    assert window == [kept, COMPACTION]
    assert (compacted.usage.input_tokens, compacted.usage.output_tokens) == (900, 30)
    [body] = sent_bodies(upstream, COMPACT_PATH)
    assert (body["model"], body["instructions"], body.keys()) == (
        "upstream",
        "Be kind.",
        {"model", "input", "instructions"},
    )
    assert [item["role"] for item in body["input"]] == ["user", "assistant"]
    assert sent_bodies(upstream)[0]["input"] == [user("My name is Ada."), COMPACTION, user("Who am I?")]


def test_context_management_is_forwarded_and_the_item_keeps_its_place(client, upstream):
    upstream.set_replies(COMPACTS_WITHIN, ANSWERS, path="v1/responses")
    managed = [{"type": "compaction", "compact_threshold": 8000}]

    first = client.responses.create(model="upstream", input="Go", context_management=managed)
    client.responses.create(model="upstream", input="On", previous_response_id=first.id)

    assert [item.type for item in first.output] == ["message", "compaction", "message"]
    assert [first.output[at].content[0].text for at in (0, 2)] == ["Before.", "After."]
    assert first.output[1].to_dict() == COMPACTION
    assert client.responses.retrieve(first.id).output[1].to_dict() == COMPACTION
    one, two = sent_bodies(upstream)
    assert one["context_management"] == managed
    assert "context_management" not in two
    assert [item for item in two["input"] if item["type"] == "compaction"] == [COMPACTION]
    assert two["input"][-1] == user("On")


@pytest.mark.parametrize("store", [True, False])
def test_a_trigger_is_forwarded_and_streams_one_item(server, upstream, store):
    upstream.set_replies(COMPACTS_ONLY, path="v1/responses")
    body = {"model": "upstream", "input": [user("Go"), TRIGGER], "stream": True, "store": store}
    with server.http() as http:
        events = read_frames(http.post("/v1/responses", json=body).content)

    check_stream(events)
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["output"] == [COMPACTION]
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == [COMPACTION]
    assert "gAAAAAB-early" not in str(events)
    [sent] = sent_bodies(upstream)
    assert sent["input"] == [user("Go"), TRIGGER]


def test_an_item_without_an_id_stays_without_one(client, upstream):
    upstream.set_replies(ANSWERS, path="v1/responses")
    item = {"type": "compaction", "encrypted_content": "gAAAAAB-final"}

    first = client.responses.create(model="upstream", input=[item, user("Go")])
    client.responses.create(model="upstream", input="On", previous_response_id=first.id)

    for body in sent_bodies(upstream):
        assert body["input"][:2] == [item, user("Go")]


def test_reasoning_that_this_server_encrypted_is_not_sent_to_an_upstream_that_cannot_open_it(client, upstream):
    upstream.set_replies(FakeUpstream.chat(ModelAnswer(reasoning="Hm.", text="Hello.")), path="v1/chat/completions")
    upstream.set_replies(ANSWERS, path="v1/responses")
    include = ["reasoning.encrypted_content"]

    first = client.responses.create(model="chat", input="Go", include=include)
    output = [item.to_dict() for item in first.output]
    client.responses.create(model="upstream", input=[*output, user("On")], store=False)
    client.responses.create(model="upstream", input="On", previous_response_id=first.id)

    own = output[0]["encrypted_content"]
    assert own.startswith("antwort1.")
    assert own not in str(sent_bodies(upstream))


# ── which side compacts ──────────────────────────────────────────────────────────────────────────────────────────────


def test_an_upstream_with_the_endpoint_is_asked_once(server, upstream):
    upstream.set_replies(FakeUpstream.json({"error": {"message": "model is missing"}}, 400), path=COMPACT_PATH)
    upstream.set_replies(COMPACTS_ONLY, path="v1/responses")
    with server.client() as client:
        for _ in range(2):
            response = client.responses.create(model="asked with endpoint", input=[user("Go"), TRIGGER])
            assert [item.to_dict() for item in response.output] == [COMPACTION]

    assert sent_bodies(upstream, COMPACT_PATH) == [{}]


@pytest.mark.parametrize("model", ["asked without endpoint", "server"])
def test_without_the_endpoint_this_server_compacts(server, upstream, model):
    upstream.set_replies(FakeUpstream.responses(ModelAnswer(text="Task: greet Ada.")), path="v1/responses")
    history = [user("My name is Ada."), {"role": "assistant", "content": "Hello Ada."}, TRIGGER]
    with server.client() as client:
        compacted = client.responses.create(model=model, input=history, store=False)
        [item] = [item.to_dict() for item in compacted.output]
        client.responses.create(model=model, input=[item, user("Who am I?")], store=False)

    assert item["type"] == "compaction"
    bodies = sent_bodies(upstream)
    assert "Ada" in str(bodies[-1]["input"]), "the model sees the opened item"
    types = {entry["type"] for body in bodies for entry in body["input"]}
    assert not {"compaction", "compaction_trigger"} & types
    assert all("context_management" not in body for body in bodies)
    assert len(sent_bodies(upstream, COMPACT_PATH)) == (model != "server")


# ── refused items ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("model", ["server", "chat"])
def test_an_item_of_the_upstream_is_refused_by_a_model_that_cannot_open_it(client, upstream, model):
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=model, input=[COMPACTION, user("Go")])

    assert caught.value.code == "invalid_encrypted_content"
    assert "cmp_0a1" in caught.value.message
    assert not upstream.requests


def test_an_item_that_the_upstream_refuses_is_a_400_with_its_code(client, upstream):
    refusal = FakeUpstream.json({"error": REFUSED_ITEM}, 400)
    upstream.set_replies(refusal, path="v1/responses")
    upstream.set_replies(refusal, path=COMPACT_PATH)
    given = {"model": "upstream", "input": [COMPACTION, user("Go")]}

    for request in (client.responses.create, client.responses.compact):
        with pytest.raises(openai.BadRequestError) as caught:
            request(**given)
        assert caught.value.code == "invalid_encrypted_content"
        assert "cmp_0a1" in caught.value.message
        assert "10.0.0.7" not in caught.value.message


def test_a_refusal_within_the_stream_has_its_code(server, upstream):
    upstream.set_replies(
        FakeUpstream.sse({"type": "response.failed", "response": {"error": REFUSED_ITEM}}), path="v1/responses"
    )
    with server.client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="upstream", input=[COMPACTION, user("Go")])

    assert (caught.value.code, caught.value.type) == ("invalid_encrypted_content", "invalid_request_error")


# ── another server of this kind as the upstream ──────────────────────────────────────────────────────────────────────


def test_a_second_server_compacts_for_the_first(tmp_path):
    script = {
        "answers": [
            {"when": {"text": "Who am I"}, "reply": [{"text": "You are <<find /Ada|Bob/>>."}]},
            {"reply": [{"text": "The user's name is Ada."}]},
        ]
    }
    with run_server(tmp_path / "back", script=script) as back:
        models = {"scripted": {"kind": "responses", "base_url": f"{back.url}/v1"}}
        with run_server(tmp_path / "front", {"models": models}) as front, front.client() as client:
            history = [user("My name is Ada."), {"role": "assistant", "content": "Hello Ada."}]
            compacted = client.responses.compact(model="scripted", input=history)
            window = as_items(compacted)
            answer = client.responses.create(model="scripted", input=[*window, user("Who am I?")], store=False)
            with back.client() as direct:
                same = direct.responses.create(model="scripted", input=[*window, user("Who am I?")], store=False)

            damaged = {**window[-1], "encrypted_content": window[-1]["encrypted_content"][:-8]}
            with pytest.raises(openai.BadRequestError) as caught:
                client.responses.create(model="scripted", input=[damaged, user("Who am I?")])

    assert window[-1]["type"] == "compaction"
    assert "You are Ada" in answer.output_text
    assert same.output_text == answer.output_text
    assert caught.value.code == "invalid_encrypted_content"
