"""Responses and conversations with the sync and async SDK, against the server process."""

from __future__ import annotations

import json
import re
import time

import openai
import pytest
from fixtures_sdk import CLIENT_KINDS, sdk_client
from fixtures_server import ROOT, create_key, run_server
from pydantic import BaseModel

TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Weather(BaseModel):
    degrees: int


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    directory = tmp_path_factory.mktemp("server")
    key = create_key(directory, "key")
    config = {
        "auth": {"keys_file": "keys.json", "requests_per_minute": 100_000, "concurrent_responses": 100},
        "models": {"scripted": {"kind": "scripted", "script": "script.yaml"}, "default_for_unknown": False},
    }
    with run_server(directory, config, program=ROOT / "tests" / "support" / "fake_echo_provider.py") as running:
        running.keys["key"] = key
        yield running


@pytest.fixture(params=CLIENT_KINDS)
def client(request, server):
    with sdk_client(server.url, request.param, server.keys["key"]) as client:
        yield client


def test_the_startup_banner_shows_what_is_on(server):
    assert "scripted (scripted, the default)" in server.banner
    assert "auth       1 key in keys.json" in server.banner
    assert "100000 requests per minute, 100 concurrent responses" in server.banner
    assert re.search(r"^tools .*\becho\b", server.banner, re.MULTILINE)
    assert len(server.banner.splitlines()) < 24


def test_a_blocking_response(client):
    response = client.responses.create(model="scripted", input="hello", metadata={"a": "b"})

    assert response.output_text == "You said: hello"
    assert response.status == "completed"
    assert response.usage.total_tokens == 19
    assert response.metadata == {"a": "b"}
    assert response._request_id.startswith("req_")


def test_a_request_without_a_model_uses_the_default(client):
    assert client.responses.create(input="hello").model == "scripted"


def test_a_retrieved_response_equals_the_created_one(client):
    response = client.responses.create(model="scripted", input="store me")

    assert client.responses.retrieve(response.id).to_dict() == response.to_dict()


def test_a_streamed_response(client):
    with client.responses.create(model="scripted", input="hello", stream=True) as stream:
        events = list(stream)

    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [events[0].type, events[1].type, events[-1].type] == [
        "response.created",
        "response.in_progress",
        "response.completed",
    ]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == events[-1].response.output_text == "You said: hello"
    assert client.responses.retrieve(events[-1].response.id).output_text == "You said: hello"


def test_the_stream_helper_of_the_sdk_accepts_every_stream(client):
    for text in ("hello", "refuse", "the weather"):
        with client.responses.stream(model="scripted", input=text, tools=[TOOL]) as stream:
            for _ in stream:
                pass
            assert stream.get_final_response().status == "completed"


def test_client_side_function_calls(client):
    first = client.responses.create(model="scripted", input="the weather?", tools=[TOOL])
    calls = [item for item in first.output if item.type == "function_call"]
    outputs = [{"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"} for call in calls]
    final = client.responses.create(model="scripted", previous_response_id=first.id, input=outputs, tools=[TOOL])

    assert [json.loads(call.arguments) for call in calls] == [{"city": "Berlin"}, {"city": "Paris"}]
    assert final.output_text == '{"degrees": 21}'


def test_a_client_can_replay_the_history(client):
    first = client.responses.create(model="scripted", input="the weather?", tools=[TOOL], store=False)
    calls = [item for item in first.output if item.type == "function_call"]
    outputs = [{"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"} for call in calls]
    history = [{"role": "user", "content": "the weather?"}, *first.output, *outputs]

    assert client.responses.create(model="scripted", input=history, tools=[TOOL]).output_text == '{"degrees": 21}'


def test_structured_output_with_tools(client):
    first = client.responses.parse(model="scripted", input="the weather?", tools=[TOOL], text_format=Weather)
    calls = [item for item in first.output if item.type == "function_call"]
    outputs = [{"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"} for call in calls]
    final = client.responses.parse(
        model="scripted", previous_response_id=first.id, input=outputs, tools=[TOOL], text_format=Weather
    )

    assert final.output_parsed == Weather(degrees=21)


def test_a_custom_tool_call(client):
    response = client.responses.create(
        model="scripted", input="shout!", tools=[{"type": "custom", "name": "shout"}], tool_choice="required"
    )

    assert [(item.type, item.input) for item in response.output] == [("custom_tool_call", "A")]


def test_previous_response_id_continues_a_chain(client):
    first = client.responses.create(model="scripted", input="one")
    second = client.responses.create(model="scripted", input="two", previous_response_id=first.id)
    items = client.responses.input_items.list(second.id).data

    assert second.previous_response_id == first.id
    assert [item.content[0].text for item in items] == ["two"]


def test_input_items_are_paged(client):
    messages = [{"role": "user", "content": f"message {number}"} for number in range(5)]
    response = client.responses.create(model="scripted", input=messages)
    texts = [item.content[0].text for item in client.responses.input_items.list(response.id, limit=2, order="asc")]

    assert texts == [f"message {number}" for number in range(5)]


def test_conversation_items(client):
    conversation = client.conversations.create(
        items=[{"type": "message", "role": "user", "content": "before"}], metadata={"topic": "x"}
    )
    client.responses.create(model="scripted", input="now", conversation=conversation.id)
    items = list(client.conversations.items.list(conversation.id, order="asc"))

    assert [item.content[0].text for item in items] == ["before", "now", "You said: now"]
    added = client.conversations.items.create(
        conversation.id, items=[{"type": "message", "role": "user", "content": "after"}]
    )
    assert client.conversations.items.retrieve(added.data[0].id, conversation_id=conversation.id).id == added.data[0].id
    assert client.conversations.items.delete(added.data[0].id, conversation_id=conversation.id).id == conversation.id
    assert client.conversations.update(conversation.id, metadata={"topic": "y"}).metadata == {"topic": "y"}
    assert client.conversations.retrieve(conversation.id).metadata == {"topic": "y"}
    assert client.conversations.delete(conversation.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(conversation.id)


def test_a_background_response_is_polled(client):
    response = client.responses.create(model="scripted", input="slowly", background=True)

    assert response.status == "queued"
    while response.status in ("queued", "in_progress"):
        time.sleep(0.1)
        response = client.responses.retrieve(response.id)
    assert response.status == "completed"
    assert response.output_text.startswith("word0 word1")


def test_a_background_stream_is_resumed(client):
    received = []
    with client.responses.create(model="scripted", input="slowly", background=True, stream=True) as stream:
        for event in stream:
            received.append(event)
            if event.type == "response.output_text.delta":
                break
    identifier = received[0].response.id
    with client.responses.retrieve(identifier, stream=True, starting_after=received[-1].sequence_number) as stream:
        received += list(stream)

    assert [event.sequence_number for event in received] == list(range(len(received)))
    assert [event.type for event in received[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert received[-1].type == "response.completed"
    with client.responses.retrieve(identifier, stream=True) as stream:
        assert [event.type for event in stream] == [event.type for event in received]


def test_a_background_response_is_cancelled(client):
    response = client.responses.create(model="scripted", input="forever", background=True)
    time.sleep(0.2)
    cancelled = client.responses.cancel(response.id)

    assert cancelled.status == "cancelled"
    assert client.responses.retrieve(response.id).status == "cancelled"
    assert client.responses.cancel(response.id).status == "cancelled"


def test_streams_of_a_cancelled_response_end_with_its_status(client):
    with client.responses.create(model="scripted", input="forever", background=True, stream=True) as stream:
        identifier = next(iter(stream)).response.id
        assert client.responses.cancel(identifier).status == "cancelled"
        last = list(stream)[-1]
    with client.responses.retrieve(identifier, stream=True) as stream:
        events = list(stream)

    assert (last.type, last.response.status) == ("response.incomplete", "cancelled")
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1] == last
    assert client.responses.retrieve(identifier).to_dict() == last.response.to_dict()


def test_a_background_response_is_cancelled_before_it_starts(client):
    for _ in range(20):
        response = client.responses.create(model="scripted", input="forever", background=True)
        assert client.responses.cancel(response.id).status == "cancelled"


def test_a_synchronous_response_cannot_be_cancelled(client):
    response = client.responses.create(model="scripted", input="hello")
    with pytest.raises(openai.BadRequestError, match="synchronous"):
        client.responses.cancel(response.id)


def test_a_deleted_response_is_not_found(client):
    response = client.responses.create(model="scripted", input="hello")
    client.responses.delete(response.id)

    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="scripted", input="x", previous_response_id=response.id)
    assert caught.value.code == "previous_response_not_found"


def test_store_false_stores_and_logs_nothing(client, server):
    secret = "the word is xylophone"
    response = client.responses.create(model="scripted", input=secret, store=False)

    assert response.output_text == f"You said: {secret}"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    stored = b"".join(path.read_bytes() for path in (server.directory / ".antwort").rglob("*") if path.is_file())
    assert b"xylophone" not in stored
    assert "xylophone" not in server.read_log()


def test_input_tokens_are_counted(client):
    short = client.responses.input_tokens.count(model="scripted", input="hello")
    long = client.responses.input_tokens.count(model="scripted", input="hello " * 1000)

    assert short.object == "response.input_tokens"
    assert 0 < short.input_tokens < long.input_tokens


def test_a_rate_limited_model_is_a_429_with_retry_after(client):
    with pytest.raises(openai.RateLimitError) as caught:
        client.responses.create(model="scripted", input="busy")
    assert caught.value.response.headers["retry-after"] == "7"
    assert caught.value.code == "rate_limit_exceeded"


def test_a_failed_response_keeps_the_partial_output(client):
    response = client.responses.create(model="scripted", input="break")

    assert response.status == "failed"
    assert response.error.code == "server_error"
    assert response.output[0].content[0].text == "half an "
    with (
        client.responses.create(model="scripted", input="break", stream=True) as stream,
        pytest.raises(openai.APIError),
    ):
        list(stream)


def test_a_truncated_answer_is_incomplete(client):
    response = client.responses.create(model="scripted", input="cut")

    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"


def test_models_are_listed(client):
    assert [model.id for model in client.models.list()] == ["scripted"]
    assert client.models.retrieve("scripted").object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


@pytest.mark.parametrize("unknown", ["resp_0", "conv_0", "file-0", "msg_0", "no_prefix", "ä b", "x" * 300])
def test_unknown_ids_are_not_found(client, unknown):
    conversation = client.conversations.create()
    for call in (
        lambda: client.responses.retrieve(unknown),
        lambda: list(client.responses.retrieve(unknown, stream=True)),
        lambda: client.responses.delete(unknown),
        lambda: client.responses.cancel(unknown),
        lambda: client.responses.input_items.list(unknown),
        lambda: client.conversations.retrieve(unknown),
        lambda: client.conversations.update(unknown, metadata={}),
        lambda: client.conversations.delete(unknown),
        lambda: client.conversations.items.list(unknown),
        lambda: client.conversations.items.retrieve(unknown, conversation_id=conversation.id),
        lambda: client.conversations.items.delete(unknown, conversation_id=conversation.id),
        lambda: client.files.retrieve(unknown),
        lambda: client.files.content(unknown),
        lambda: client.files.delete(unknown),
        lambda: client.models.retrieve(unknown),
    ):
        with pytest.raises(openai.NotFoundError):
            call()


def test_unknown_ids_in_a_body_are_not_found(client):
    with pytest.raises(openai.NotFoundError):
        client.responses.create(input="x", conversation="conv_0")
    for unknown in ("msg_0", "no_prefix"):
        with pytest.raises(openai.NotFoundError):
            client.responses.create(input=[{"type": "item_reference", "id": unknown}])
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(input="x", previous_response_id="resp_0")
    assert caught.value.code == "previous_response_not_found"
