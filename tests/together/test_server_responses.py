"""The real process with everything on, and the real SDK, sync and async: responses in all their forms."""

from __future__ import annotations

import json
import time

import openai
import pytest
from fixtures_sdk import KINDS, sdk
from fixtures_server import ROOT, make_key, serving
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
    place = tmp_path_factory.mktemp("server")
    key = make_key(place, "everything")
    config = {"auth": {"keys_file": "keys.json", "requests_per_minute": 100_000, "concurrent_responses": 100}}
    with serving(place, config, program=ROOT / "tests" / "support" / "fake_echo_provider.py") as running:
        running.keys["ours"] = key
        yield running


@pytest.fixture(params=KINDS)
def client(request, server):
    with sdk(server.url, request.param, server.keys["ours"]) as client:
        yield client


def test_the_screen_says_what_is_on(server):
    assert "scripted (scripted, the default)" in server.screen
    assert "auth       1 keys" in server.screen
    assert "100000 requests per minute, 100 concurrent responses" in server.screen
    assert "tools      echo" in server.screen
    assert len(server.screen.splitlines()) < 24


def test_a_plain_response(client):
    response = client.responses.create(model="scripted", input="hello", metadata={"a": "b"})

    assert response.output_text == "You said: hello"
    assert response.status == "completed"
    assert response.usage.total_tokens == 19
    assert response.metadata == {"a": "b"}
    assert response._request_id.startswith("req_")


def test_a_request_without_a_model_gets_the_default(client):
    assert client.responses.create(input="hello").model == "scripted"


def test_a_response_is_kept_as_it_was_told(client):
    response = client.responses.create(model="scripted", input="keep me")

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


def test_the_strict_helper_accepts_every_stream(client):
    for text in ("hello", "refuse", "the weather"):
        with client.responses.stream(model="scripted", input=text, tools=[TOOL]) as stream:
            for _ in stream:
                pass
            assert stream.get_final_response().status == "completed"


def test_functions_go_back_to_the_client_and_their_results_come_in(client):
    asked = client.responses.create(model="scripted", input="the weather?", tools=[TOOL])
    calls = [item for item in asked.output if item.type == "function_call"]
    outputs = [{"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"} for call in calls]
    answered = client.responses.create(model="scripted", previous_response_id=asked.id, input=outputs, tools=[TOOL])

    assert [json.loads(call.arguments) for call in calls] == [{"city": "Berlin"}, {"city": "Paris"}]
    assert answered.output_text == '{"degrees": 21}'


def test_history_can_be_replayed_by_hand(client):
    asked = client.responses.create(model="scripted", input="the weather?", tools=[TOOL], store=False)
    calls = [item for item in asked.output if item.type == "function_call"]
    outputs = [{"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"} for call in calls]
    history = [{"role": "user", "content": "the weather?"}, *asked.output, *outputs]

    assert client.responses.create(model="scripted", input=history, tools=[TOOL]).output_text == '{"degrees": 21}'


def test_structured_output_beside_tools(client):
    asked = client.responses.parse(model="scripted", input="the weather?", tools=[TOOL], text_format=Weather)
    calls = [item for item in asked.output if item.type == "function_call"]
    outputs = [{"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"} for call in calls]
    answered = client.responses.parse(
        model="scripted", previous_response_id=asked.id, input=outputs, tools=[TOOL], text_format=Weather
    )

    assert answered.output_parsed == Weather(degrees=21)


def test_a_custom_tool_takes_free_text(client):
    response = client.responses.create(
        model="scripted", input="shout!", tools=[{"type": "custom", "name": "shout"}], tool_choice="required"
    )

    assert [(item.type, item.input) for item in response.output] == [("custom_tool_call", "A")]


def test_chains_go_on_where_they_ended(client):
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


def test_conversations_gather_what_is_said(client):
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


def test_background_is_polled_to_its_end(client):
    response = client.responses.create(model="scripted", input="slowly", background=True)

    assert response.status == "queued"
    while response.status in ("queued", "in_progress"):
        time.sleep(0.1)
        response = client.responses.retrieve(response.id)
    assert response.status == "completed"
    assert response.output_text.startswith("word0 word1")


def test_a_background_stream_is_resumed_where_it_was_lost(client):
    seen = []
    with client.responses.create(model="scripted", input="slowly", background=True, stream=True) as stream:
        for event in stream:
            seen.append(event)
            if event.type == "response.output_text.delta":
                break
    identifier = seen[0].response.id
    with client.responses.retrieve(identifier, stream=True, starting_after=seen[-1].sequence_number) as stream:
        seen += list(stream)

    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert [event.type for event in seen[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert seen[-1].type == "response.completed"
    with client.responses.retrieve(identifier, stream=True) as stream:
        assert [event.type for event in stream] == [event.type for event in seen]


def test_background_is_cancelled(client):
    response = client.responses.create(model="scripted", input="forever", background=True)
    time.sleep(0.2)
    cancelled = client.responses.cancel(response.id)

    assert cancelled.status == "cancelled"
    assert client.responses.retrieve(response.id).status == "cancelled"
    assert client.responses.cancel(response.id).status == "cancelled"


def test_whoever_follows_a_cancelled_response_is_told(client):
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


def test_background_is_cancelled_before_it_has_begun(client):
    for _ in range(20):
        response = client.responses.create(model="scripted", input="forever", background=True)
        assert client.responses.cancel(response.id).status == "cancelled"


def test_only_background_is_cancelled(client):
    response = client.responses.create(model="scripted", input="hello")
    with pytest.raises(openai.BadRequestError, match="synchronous"):
        client.responses.cancel(response.id)


def test_a_deleted_response_is_gone(client):
    response = client.responses.create(model="scripted", input="hello")
    client.responses.delete(response.id)

    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="scripted", input="x", previous_response_id=response.id)
    assert caught.value.code == "previous_response_not_found"


def test_store_false_leaves_nothing(client, server):
    secret = "the word is xylophone"
    response = client.responses.create(model="scripted", input=secret, store=False)

    assert response.output_text == f"You said: {secret}"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    kept = b"".join(path.read_bytes() for path in (server.place / ".antwort").rglob("*") if path.is_file())
    assert b"xylophone" not in kept
    assert "xylophone" not in server.lines()


def test_the_input_is_counted(client):
    short = client.responses.input_tokens.count(model="scripted", input="hello")
    long = client.responses.input_tokens.count(model="scripted", input="hello " * 1000)

    assert short.object == "response.input_tokens"
    assert 0 < short.input_tokens < long.input_tokens


def test_a_model_that_has_no_time_is_a_429_that_says_when(client):
    with pytest.raises(openai.RateLimitError) as caught:
        client.responses.create(model="scripted", input="busy")
    assert caught.value.response.headers["retry-after"] == "7"
    assert caught.value.code == "rate_limit_exceeded"


def test_a_model_that_breaks_off_leaves_what_there_was(client):
    response = client.responses.create(model="scripted", input="break")

    assert response.status == "failed"
    assert response.error.code == "server_error"
    assert response.output[0].content[0].text == "half an "
    with (
        client.responses.create(model="scripted", input="break", stream=True) as stream,
        pytest.raises(openai.APIError),
    ):
        list(stream)


def test_a_cut_answer_is_incomplete(client):
    response = client.responses.create(model="scripted", input="cut")

    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"


def test_the_models_are_listed(client):
    assert [model.id for model in client.models.list()] == ["scripted"]
    assert client.models.retrieve("scripted").object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


@pytest.mark.parametrize("wrong", ["resp_0", "conv_0", "file-0", "msg_0", "nonsense", "ä b", "x" * 300])
def test_wrong_ids_are_not_found(client, wrong):
    conversation = client.conversations.create()
    for ask in (
        lambda: client.responses.retrieve(wrong),
        lambda: list(client.responses.retrieve(wrong, stream=True)),
        lambda: client.responses.delete(wrong),
        lambda: client.responses.cancel(wrong),
        lambda: client.responses.input_items.list(wrong),
        lambda: client.conversations.retrieve(wrong),
        lambda: client.conversations.update(wrong, metadata={}),
        lambda: client.conversations.delete(wrong),
        lambda: client.conversations.items.list(wrong),
        lambda: client.conversations.items.retrieve(wrong, conversation_id=conversation.id),
        lambda: client.conversations.items.delete(wrong, conversation_id=conversation.id),
        lambda: client.files.retrieve(wrong),
        lambda: client.files.content(wrong),
        lambda: client.files.delete(wrong),
        lambda: client.models.retrieve(wrong),
        lambda: client.responses.create(input="x", conversation=wrong),
        lambda: client.responses.create(input=[{"type": "item_reference", "id": wrong}]),
    ):
        with pytest.raises(openai.NotFoundError):
            ask()
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(input="x", previous_response_id=wrong)
    assert caught.value.code == "previous_response_not_found"
