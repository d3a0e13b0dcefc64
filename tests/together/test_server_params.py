"""Request parameters of POST /v1/responses: server process and SDK."""

from __future__ import annotations

import openai
import pytest
from fake_upstream import running_upstream
from fixtures_server import create_key, run_server

from antwort.testing.model import AnswerCall, ModelAnswer

HELLO = ModelAnswer(text="Hello.")
TOO_LONG = {"error": {"message": "This model's maximum context length is 9 tokens", "code": "context_length_exceeded"}}
MESSAGES = [{"role": "user", "content": f"number {at}"} for at in range(9)]


@pytest.fixture(scope="module")
def upstream():
    with running_upstream() as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory, upstream):
    models = {
        "default": "scripted",
        "scripted": {"kind": "scripted", "script": "script.yaml"},
        "chat": {"kind": "chat_completions", "base_url": upstream.url, "tokenizer": "estimate"},
    }
    with run_server(tmp_path_factory.mktemp("server"), {"models": models}) as running:
        yield running


@pytest.fixture
def client(server, upstream):
    upstream.reset()
    upstream.set_replies(upstream.chat(HELLO))
    with server.client() as client:
        yield client


# ── truncation ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stream", [False, True])
def test_truncation_drops_the_oldest_items_until_the_input_fits(client, upstream, stream):
    rejected = upstream.json(TOO_LONG, 400)
    upstream.set_replies(rejected, rejected, upstream.chat(HELLO))
    answer = client.responses.create(model="chat", input=MESSAGES, truncation="auto", stream=stream)
    response = list(answer)[-1].response if stream else answer

    assert (response.output_text, response.truncation) == ("Hello.", "auto")
    assert [len(request.body["messages"]) for request in upstream.requests] == [9, 5, 3]
    assert upstream.requests[-1].body["messages"][-1]["content"] == "number 8"
    assert len(client.responses.input_items.list(response.id).data) == 9


def test_without_truncation_a_too_long_input_is_a_400(client, upstream):
    upstream.set_replies(upstream.json(TOO_LONG, 400))
    for options in ({}, {"truncation": "disabled"}):
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model="chat", input=MESSAGES, **options)
        assert caught.value.code == "context_length_exceeded"
    with (
        client.responses.create(model="chat", input=MESSAGES, stream=True) as stream,
        pytest.raises(openai.APIError) as failed,
    ):
        list(stream)
    assert (failed.value.code, failed.value.type) == ("context_length_exceeded", "invalid_request_error")


# ── stored and echoed ────────────────────────────────────────────────────────────────────────────────────────────────


def test_parameters_without_effect_are_stored_and_echoed(client):
    parameters = {
        "prompt_cache_key": "a-key",
        "safety_identifier": "user-1",
        "user": "user-1",
        "service_tier": "flex",
        "metadata": {"a": "b"},
        "max_tool_calls": 3,
        "prompt_cache_retention": "24h",
    }
    response = client.responses.create(input="hello", **parameters)
    stored = client.responses.retrieve(response.id)

    for name, value in parameters.items():
        assert getattr(response, name) == value
        assert getattr(stored, name) == value
    assert client.responses.create(input="hello", service_tier="auto").service_tier == "default"


def test_instructions_are_not_inherited(client, upstream):
    first = client.responses.create(model="chat", input="hello", instructions="Be kind.")
    second = client.responses.create(model="chat", input="again", previous_response_id=first.id)

    assert (first.instructions, second.instructions) == ("Be kind.", None)
    assert [message["role"] for message in upstream.requests[-1].body["messages"]] == ["user", "assistant", "user"]


# ── invalid values ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "parameters, code, param",
    [
        ({"prompt": {"id": "pmpt_1"}}, "unsupported_parameter", "prompt"),
        ({"background": True, "store": False}, "invalid_value", "background"),
        (
            {"conversation": "conv_1", "previous_response_id": "resp_1"},
            "mutually_exclusive_parameters",
            "previous_response_id",
        ),
        ({"previous_response_id": "resp_0"}, "previous_response_not_found", "previous_response_id"),
        ({"service_tier": "gold"}, "invalid_value", "service_tier"),
        ({"truncation": "some"}, "invalid_value", "truncation"),
        ({"max_tool_calls": 0}, "integer_below_min_value", "max_tool_calls"),
        ({"max_output_tokens": -1}, "integer_below_min_value", "max_output_tokens"),
        ({"top_logprobs": 21}, "integer_above_max_value", "top_logprobs"),
        ({"metadata": {"k" * 65: "v"}}, "string_above_max_length", "metadata"),
        ({"metadata": {"k": "v" * 513}}, "string_above_max_length", "metadata"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "missing_required_parameter", "tool_choice.tools"),
        ({"tool_choice": "sometimes"}, "invalid_value", "tool_choice"),
    ],
)
def test_an_invalid_parameter_is_a_400_with_its_name(client, parameters, code, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(input="hello", **parameters)

    assert (caught.value.code, caught.value.param) == (code, param)


# ── schemas ──────────────────────────────────────────────────────────────────────────────────────────────────────────


DANGLING = {"type": "object", "properties": {"a": {"$ref": "#/$defs/Y"}}, "$defs": {"X": {"type": "string"}}}
OPEN = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "required": ["a", "b"]}
CLOSED = {**OPEN, "additionalProperties": False}
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/N"}}, "required": ["next"]}
RECURSIVE = {
    "type": "object",
    "properties": {"first": {"anyOf": [{"$ref": "#/$defs/N"}, {"type": "null"}]}, "again": {"$ref": "#"}},
    "required": ["first", "again"],
    "additionalProperties": False,
    "$defs": {"N": {**NODE, "additionalProperties": False}},
}
NOT_FOUND = "In context=('properties', 'a'), reference to component '#/$defs/Y' which was not found in the schema."
MISSING = (
    "In context=(), 'required' is required to be supplied and to be an array including every key in properties. "
    "Missing 'b'."
)
NO_DEFINITION = (
    "In context=('$defs', 'A'), reference can only point to definitions defined at the top level of the schema."
)
NOT_CLOSED = "In context=(), 'additionalProperties' is required to be supplied and to be false."


def message_of(error: openai.APIStatusError) -> str:
    return error.response.json()["error"]["message"]


@pytest.mark.parametrize(
    "schema, strict, problem",
    [
        (DANGLING, False, NOT_FOUND),
        (DANGLING, None, NOT_FOUND),
        (OPEN, True, NOT_CLOSED),
        ({**CLOSED, "required": ["a"]}, True, MISSING),
        ({key: value for key, value in CLOSED.items() if key != "required"}, True, MISSING.replace("'b'", "'a'")),
        ({"type": "string"}, True, """schema must be a JSON Schema of 'type: "object"', got 'type: "string"'."""),
        ({**CLOSED, "$defs": {"A": {"$ref": "https://x.example/y"}}}, True, NO_DEFINITION),
    ],
    ids=[
        *("dangling", "dangling, strict not given", "additionalProperties", "required", "no required"),
        *("no object", "no definition"),
    ],
)
def test_an_invalid_schema_is_refused_as_openai_does(client, schema, strict, problem):
    tool = {"type": "function", "name": "look", "parameters": schema, "strict": strict}
    form = {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": strict}}
    for work in (client.responses.create, client.responses.input_tokens.count):
        with pytest.raises(openai.BadRequestError) as caught:
            work(input="hello", tools=[{"type": "function", "name": "f"}, tool])
        assert (caught.value.code, caught.value.param) == ("invalid_function_parameters", "tools[1].parameters")
        assert message_of(caught.value) == f"Invalid schema for function 'look': {problem}"
        with pytest.raises(openai.BadRequestError) as caught:
            work(input="hello", text=form)
        assert (caught.value.code, caught.value.param) == ("invalid_json_schema", "text.format.schema")
        assert message_of(caught.value) == f"Invalid schema for response_format 'answer': {problem}"


@pytest.mark.parametrize(
    "schema, strict",
    [(CLOSED, True), (RECURSIVE, True), (OPEN, False), (OPEN, None), ({**OPEN, "required": []}, None)],
)
def test_a_valid_schema_is_accepted(client, schema, strict):
    tool = {"type": "function", "name": "look", "parameters": schema, "strict": strict}
    form = {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": strict}}

    assert client.responses.create(input="hello", tools=[tool], text=form).status == "completed"


def test_an_unknown_conversation_is_a_404(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.create(input="hello", conversation="conv_0")
    assert caught.value.param == "conversation"


# ── references ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_item_reference_is_resolved(client, upstream):
    first = client.responses.create(input="remember the xylophone")
    items = client.responses.input_items.list(first.id).data
    for reference in ({"type": "item_reference", "id": items[0].id}, {"id": items[0].id}):
        client.responses.create(model="chat", input=[reference, {"role": "user", "content": "what?"}])
        assert upstream.requests[-1].body["messages"][0]["content"] == "remember the xylophone"


def test_an_unresolved_item_reference_is_a_404_with_its_parameter(client):
    unstored = client.responses.create(input="hello", store=False).output[0].id
    for identifier in ("msg_0", unstored):
        reference = {"type": "item_reference", "id": identifier}
        with pytest.raises(openai.NotFoundError, match="not persisted when `store` is set to false") as caught:
            client.responses.create(input=[{"role": "user", "content": "hello"}, reference])
        assert caught.value.param == "input[1]"


def test_reasoning_without_content_is_a_reference(client, upstream):
    tool = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
    first = client.responses.create(input="the weather", tools=[tool])
    reasoning = next(item for item in first.output if item.type == "reasoning")
    bare = {"type": "reasoning", "id": reasoning.id, "summary": []}
    second = client.responses.create(input=[bare, {"role": "user", "content": "hello"}])
    stored = client.responses.input_items.list(second.id, order="asc").data[0]

    assert stored.content[0].text == reasoning.content[0].text == "The user wants the weather."
    with pytest.raises(openai.NotFoundError):
        client.responses.create(input=[{**bare, "id": "rs_0"}, {"role": "user", "content": "hello"}])


def test_a_message_of_another_server_can_be_replayed(client):
    part = {"type": "output_text", "text": "hi", "annotations": [{"type": "unknown_type"}], "logprobs": None}
    message = {
        "type": "message",
        "id": "msg_x",
        "role": "assistant",
        "status": "completed",
        "content": [part],
        "phase": None,
    }

    assert client.responses.create(input=[message, {"role": "user", "content": "hello"}]).status == "completed"


# ── other ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_only_allowed_tools_are_sent_to_the_model(client, upstream):
    tools = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("one", "two")]
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "two"}]}
    upstream.set_replies(upstream.chat(ModelAnswer(calls=(AnswerCall("two", "{}"),))))
    response = client.responses.create(model="chat", input="hello", tools=tools, tool_choice=choice)

    sent = upstream.requests[-1].body
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["two"]
    assert sent["tool_choice"] == "required"
    assert response.to_dict()["tool_choice"] == choice
    assert [tool.name for tool in response.tools] == ["one", "two"]


def test_tokens_are_counted_without_input(client):
    counted = client.responses.input_tokens.count(instructions="word " * 100)

    assert counted.input_tokens > 100


def test_an_invalid_key_has_openai_s_error(tmp_path):
    create_key(tmp_path / "server", "me")
    with (
        run_server(tmp_path / "server", {"auth": {"keys_file": "keys.json"}}) as server,
        server.client("sk-wrong") as client,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        client.models.list()
    assert (caught.value.type, caught.value.code) == ("invalid_request_error", "invalid_api_key")
