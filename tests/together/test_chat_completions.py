"""POST /v1/chat/completions with the openai SDK, against the server process."""

from __future__ import annotations

import json
import re

import httpx2
import openai
import pytest
from fake_upstream import running_upstream
from fixtures_sdk import sdk_client
from fixtures_server import ROOT, SCRIPT, create_key, run_server
from pydantic import BaseModel
from waiting import wait_until

from antwort.testing.model import ModelAnswer

KEY = "key"
PIXEL = "data:image/png;base64,iVBORw0KGgo="
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USER = {"role": "user", "content": "hi"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
SHOUT = {"type": "custom", "custom": {"name": "shout", "format": {"type": "text"}}}
SEARCH = {"type": "file_search", "vector_store_ids": ["vs_1"]}
SEARCHES = [
    {
        "when": {"text": "look up", "turn": 1, "tool": "file_search"},
        "reply": [{"text": "I search."}, {"call": {"name": "file_search", "arguments": {"query": "tea"}}}],
    },
    {"when": {"text": "look up"}, "reply": [{"text": "Found: <<output>>"}]},
    {"when": {"text": "remember"}, "reply": [{"text": "You read: <<find /echo \\w+/>>"}]},
    {"when": {"text": "nothing"}, "reply": []},
    {"when": {"text": "elsewhere"}, "reply": [{"call": {"name": "get_weather", "id": "call:from/elsewhere"}}]},
    {"when": {"text": "think"}, "reply": [{"reasoning": "Hm, hm."}, {"text": "So."}]},
    {"when": {"text": "count"}, "reply": [{"text": "one END two END three"}]},
]


class Weather(BaseModel):
    degrees: int


@pytest.fixture(scope="module")
def upstream():
    with running_upstream() as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory, upstream):
    directory = tmp_path_factory.mktemp("server")
    keys = {KEY: create_key(directory, KEY), "one": create_key(directory, "one", "--concurrent-responses", "1")}
    config = {
        "auth": {"keys_file": "keys.json", "requests_per_minute": 100_000, "concurrent_responses": 100},
        "server": {"cors_origins": ["https://app.example"]},
        "models": {
            "default": "scripted",
            "scripted": {"kind": "scripted", "script": "script.yaml"},
            "chat": {"kind": "chat_completions", "base_url": upstream.url, "tokenizer": "estimate", "attempts": 1},
            "pass": {"kind": "responses", "base_url": upstream.url, "attempts": 1},
            "default_for_unknown": False,
        },
    }
    script = {**SCRIPT, "answers": [*SEARCHES, *SCRIPT["answers"]]}
    program = ROOT / "tests" / "support" / "fake_echo_provider.py"
    with run_server(directory, config, script=script, program=program) as running:
        running.keys = keys
        yield running


@pytest.fixture(scope="module")
def client(server):
    with sdk_client(server.url, "sync", server.keys[KEY]) as client:
        yield client


@pytest.fixture
def http(server):
    headers = {"authorization": f"Bearer {server.keys[KEY]}"}
    with httpx2.Client(base_url=server.url, headers=headers, trust_env=False, timeout=30) as client:
        yield client


def ask(client, text: str | list, stream: bool = False, **options):
    """The answer to a question, also of a stream, as the SDK puts it together."""
    messages = [{"role": "user", "content": text}] if isinstance(text, str) else text
    request = {"model": "scripted", "messages": messages, **options}
    if not stream:
        return client.chat.completions.create(**request)
    with client.chat.completions.stream(**request, stream_options={"include_usage": True}) as events:
        return events.get_final_completion()


def said(answer) -> str:
    return answer.choices[0].message.content


def refused(http, **body) -> dict:
    """The error of a request that is refused."""
    answer = http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}], **body})
    assert answer.status_code in (400, 404), answer.text
    return answer.json()["error"]


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stream", [False, True])
def test_text_and_usage(client, stream):
    answer = ask(client, "hello", stream)

    assert answer.id.startswith("chatcmpl-")
    assert (said(answer), answer.model, answer.choices[0].finish_reason) == ("You said: hello", "scripted", "stop")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (12, 7, 19)
    assert (answer.choices[0].message.refusal, answer.choices[0].logprobs) == (None, None)


def test_the_async_client(server):
    with sdk_client(server.url, "async", server.keys[KEY]) as client:
        assert said(ask(client, "hello")) == "You said: hello"
        chunks = list(client.chat.completions.create(model="scripted", messages=[USER], stream=True))

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "You said: hi"
    assert [chunk.usage for chunk in chunks] == [None] * len(chunks)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "text, content, refusal, reason",
    [
        ("refuse", None, "I will not.", "stop"),
        ("cut", "too long", None, "length"),
        ("nothing", "", None, "stop"),
    ],
)
def test_refusals_cuts_and_empty_answers(client, stream, text, content, refusal, reason):
    request = {"model": "scripted", "messages": [{"role": "user", "content": text}]}
    (choice,) = client.chat.completions.create(**request).choices
    if stream:
        chunks = client.chat.completions.create(**request, stream=True)
        deltas = [chunk.choices[0] for chunk in chunks]
        texts = [one.delta.content for one in deltas if one.delta.content is not None]
        assert ("".join(texts) if texts else None) == content
        assert "".join(one.delta.refusal or "" for one in deltas) == (refusal or "")
        assert deltas[-1].finish_reason == reason
    assert (choice.message.content, choice.message.refusal, choice.finish_reason) == (content, refusal, reason)


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_reasoning_content(client, stream):
    message = ask(client, "think", stream).choices[0].message

    assert (message.content, message.reasoning_content) == ("So.", "Hm, hm.")


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(client, stream):
    logprobs = ask(client, "hello", stream, logprobs=True, top_logprobs=1).choices[0].logprobs

    assert "".join(token.token for token in logprobs.content) == "You said: hello"
    assert all(token.top_logprobs[0].token == token.token for token in logprobs.content)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop", ["END", ["never", " END t"]])
def test_stop_sequences(client, stream, stop):
    answer = ask(client, "count", stream, stop=stop)

    assert (said(answer).strip(), answer.choices[0].finish_reason) == ("one", "stop")


@pytest.mark.parametrize("stream", [False, True])
def test_structured_output(client, stream):
    messages = [
        {"role": "user", "content": "weather"},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "a", "content": "21 degrees"},
    ]
    if stream:
        parsed = ask(client, messages, stream, response_format=Weather).choices[0].message.parsed
    else:
        answer = client.chat.completions.parse(model="scripted", messages=messages, response_format=Weather)
        parsed = answer.choices[0].message.parsed

    assert parsed == Weather(degrees=21)


# ── tools ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stream", [False, True])
def test_parallel_calls_and_their_results(client, stream):
    question = {"role": "user", "content": "weather"}
    answer = ask(client, [question], stream, tools=[WEATHER])
    message = answer.choices[0].message
    calls = message.tool_calls

    assert (answer.choices[0].finish_reason, message.content) == ("tool_calls", None)
    assert [(call.type, json.loads(call.function.arguments)["city"]) for call in calls] == [
        ("function", "Berlin"),
        ("function", "Paris"),
    ]
    outputs = [{"role": "tool", "tool_call_id": call.id, "content": "21 degrees"} for call in calls]
    replayed = message.model_dump(exclude_none=True, exclude={"tool_calls": {"__all__": {"index"}}})
    assert said(ask(client, [question, replayed, *outputs], stream, tools=[WEATHER])) == '{"degrees": 21}'


@pytest.mark.parametrize("stream", [False, True])
def test_custom_tools(client, stream):
    request = {"model": "scripted", "messages": [{"role": "user", "content": "shout"}], "tools": [SHOUT]}
    if stream:
        deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**request, stream=True)]
        calls = [call for delta in deltas for call in delta.tool_calls or ()]
        assert (calls[0].type, calls[0].custom["name"], bool(calls[0].id)) == ("custom", "shout", True)
        assert "".join(call.custom["input"] for call in calls) == "A"
        return
    (call,) = client.chat.completions.create(**request).choices[0].message.tool_calls
    assert (call.type, call.custom.name, call.custom.input) == ("custom", "shout", "A")
    history = [
        *request["messages"],
        {"role": "assistant", "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"},
    ]
    assert said(ask(client, history, tools=[SHOUT])) == '{"degrees": 21}'


@pytest.mark.parametrize("stream", [False, True])
def test_functions_in_the_deprecated_form(client, stream):
    question = {"role": "user", "content": "weather"}
    functions = [WEATHER["function"]]
    request = {"model": "scripted", "messages": [question], "functions": functions, "function_call": "auto"}
    if stream:
        choices = [chunk.choices[0] for chunk in client.chat.completions.create(**request, stream=True)]
        called = [choice.delta.function_call for choice in choices if choice.delta.function_call]
        name, arguments = called[0].name, "".join(call.arguments for call in called)
        reason = choices[-1].finish_reason
    else:
        (choice,) = client.chat.completions.create(**request).choices
        name, arguments = choice.message.function_call.name, choice.message.function_call.arguments
        reason = choice.finish_reason
    assert (name, json.loads(arguments), reason) == ("get_weather", {"city": "Berlin"}, "function_call")

    call = {"role": "assistant", "content": None, "function_call": {"name": name, "arguments": arguments}}
    output = {"role": "function", "name": name, "content": "21 degrees"}
    assert said(ask(client, [question, call, output], functions=functions)) == '{"degrees": 21}'


@pytest.mark.parametrize(
    "choice, finish",
    [
        ("none", "stop"),
        ("auto", "tool_calls"),
        ("required", "tool_calls"),
        ({"type": "function", "function": {"name": "get_weather"}}, "tool_calls"),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "get_weather"}}],
                },
            },
            "tool_calls",
        ),
    ],
)
def test_tool_choice(client, choice, finish):
    assert ask(client, "weather", tools=[WEATHER, SHOUT], tool_choice=choice).choices[0].finish_reason == finish


def test_one_call_without_parallel_calls(client):
    assert len(ask(client, "weather", tools=[WEATHER], parallel_tool_calls=False).choices[0].message.tool_calls) == 1


# ── hosted tools ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stream", [False, True])
def test_hosted_tools_run_on_the_server_and_their_items_can_be_sent_back(client, stream):
    question = {"role": "user", "content": "look up"}
    hosted = {"antwort:tools": [SEARCH]}
    answer = ask(client, [question], stream, extra_body=hosted)
    message = answer.choices[0].message
    (item,) = message.model_extra["antwort:items"]

    assert (message.content, message.tool_calls) == ("I search.\n\nFound: echo tea", None)
    assert (item["type"], item["queries"], item["results"][0]["text"]) == ("file_search_call", ["tea"], "tea")
    again = {"role": "user", "content": "remember"}
    replayed = message.model_dump(exclude_none=True)
    assert "echo" in said(ask(client, [question, replayed, again], stream, extra_body=hosted))


def test_a_plain_client_does_not_notice_hosted_tools(client):
    message = ask(client, "hello").choices[0].message

    assert message.model_extra == {}


# ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_all_of_a_request_reaches_an_upstream(client, upstream):
    upstream.reset()
    upstream.set_replies(upstream.chat(ModelAnswer(text="Seen.")))
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Be kind."}]},
        {
            "role": "user",
            "name": "ann",
            "content": [
                {"type": "text", "text": "What is it?"},
                {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "toolu_01",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
                },
            ],
            "reasoning_content": "Hm.",
            "provider_specific_fields": {"x": 1},
        },
        {"role": "tool", "tool_call_id": "toolu_01", "content": [{"type": "text", "text": "warm"}]},
    ]
    sampling = {
        "temperature": 0.5,
        "top_p": 0.9,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "seed": 7,
        "stop": ["END"],
        "logit_bias": {"50256": -100},
        "reasoning_effort": "low",
        "user": "u",
    }
    answer = ask(client, messages, model="chat", tools=[WEATHER], max_completion_tokens=5, **sampling)
    body = upstream.requests[-1].body

    assert said(answer) == "Seen."
    assert {name: body[name] for name in sampling} == sampling
    assert body["max_tokens"] == 5
    system, user, assistant, tool = body["messages"]
    assert (system["content"], user["content"][0]["text"]) == ("Be kind.", "What is it?")
    assert user["content"][1] == messages[1]["content"][1]
    assert assistant["tool_calls"] == messages[2]["tool_calls"]
    assert (tool["tool_call_id"], tool["content"]) == ("toolu_01", "warm")


@pytest.mark.parametrize("stream", [False, True])
def test_a_responses_upstream_stops_at_a_stop_sequence(client, upstream, stream):
    upstream.reset()
    upstream.set_replies(upstream.responses(ModelAnswer(text="one END two")))
    answer = ask(client, "count", stream, model="pass", stop="END", max_tokens=1, seed=3)

    assert said(answer) == "one "
    assert upstream.requests[-1].body["max_output_tokens"] == 16
    assert not {"stop", "seed"} & upstream.requests[-1].body.keys()


def test_ids_of_calls_are_those_of_the_model_or_of_another_server(client):
    (call,) = ask(client, "elsewhere", tools=[WEATHER]).choices[0].message.tool_calls
    assert call.id == "call:from/elsewhere"

    for identifier in ("call:from/elsewhere", "call_0", "x" * 1000):
        replayed = {**CALL, "id": identifier}
        output = {"role": "tool", "tool_call_id": identifier, "content": "21 degrees"}
        history = [USER, *[{"role": "assistant", "content": "", "tool_calls": [replayed]}, output] * 2]
        assert said(ask(client, history, tools=[WEATHER])) == '{"degrees": 21}'


def test_nothing_is_stored_unless_the_request_asks_for_it(client):
    stored, not_stored = ask(client, "hello", store=True), ask(client, "hello")
    response_id = stored.id.replace("chatcmpl-", "resp_")

    assert client.responses.retrieve(response_id).output_text == "You said: hello"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(not_stored.id.replace("chatcmpl-", "resp_"))


def test_other_parameters_of_openai_are_accepted(client):
    answer = ask(
        client,
        "hello",
        n=1,
        metadata={"a": "b"},
        service_tier="flex",
        modalities=["text"],
        prediction={"type": "content", "content": "You"},
        prompt_cache_key="k",
        safety_identifier="s",
        verbosity="low",
        max_tokens=100,
    )

    assert (said(answer), answer.service_tier) == ("You said: hello", "flex")


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_before_the_answer_has_its_status(client, stream):
    with pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "busy"}], stream=stream)

    assert (caught.value.code, caught.value.response.headers["retry-after"]) == ("rate_limit_exceeded", "7")


def test_an_error_in_the_middle_of_a_stream_is_raised_by_the_sdk(client):
    stream = client.chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": "break"}], stream=True
    )
    received = []
    with pytest.raises(openai.APIError) as caught:
        received.extend(chunk.choices[0].delta.content for chunk in stream)

    assert "".join(filter(None, received)) == "half an "
    assert caught.value.code == "server_error"


def test_an_error_in_the_middle_of_an_answer_that_is_not_streamed(client):
    with pytest.raises(openai.InternalServerError):
        ask(client, "break")


def test_an_unknown_model_and_a_missing_key(client, server):
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="no", messages=[{"role": "user", "content": "hi"}], stream=stream)
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with sdk_client(server.url, "sync", "wrong") as other, pytest.raises(openai.AuthenticationError):
        ask(other, "hello")


def test_the_limit_of_concurrent_responses_counts_streams_until_they_end(server):
    with sdk_client(server.url, "sync", server.keys["one"]) as client:
        with client.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": "forever"}], stream=True
        ) as stream:
            next(iter(stream))
            with pytest.raises(openai.RateLimitError):
                ask(client, "hello")
        assert wait_until(lambda: answers(client))


def answers(client) -> bool:
    """Whether the key may ask again."""
    try:
        return said(ask(client, "hello")) == "You said: hello"
    except openai.RateLimitError:
        return False


def test_text_completions_are_refused_by_name(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="scripted", prompt="hello")

    assert "/v1/chat/completions" in str(caught.value)


def test_web_pages_of_configured_origins_may_ask(http):
    origin = {"origin": "https://app.example"}
    preflight = {**origin, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}

    assert http.request("OPTIONS", "/v1/chat/completions", headers=preflight).status_code == 200
    answer = http.post("/v1/chat/completions", headers=origin, json={"messages": [{"role": "user", "content": "hi"}]})
    assert answer.headers["access-control-allow-origin"] == "https://app.example"


@pytest.mark.parametrize(
    "body, param",
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "alien", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [USER, {"role": "user", "content": [{"type": "poem"}]}]}, "messages[1].content[0].type"),
        ({"messages": [{"role": "system", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": 7}}]}]},
            "messages[0].content[0].image_url.url",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "/etc/passwd"}}]}]},
            "messages[0].content[0].image_url.url",
        ),
        (
            {
                "messages": [
                    USER,
                    {"role": "user", "content": [{"type": "image_url", "image_url": "data:image/png;base64,%"}]},
                ]
            },
            "messages[1].content[0].image_url",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "file-none"}}]}]},
            "messages[0].content[0].file.file_id",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_data": "%%%"}}]}]},
            "messages[0].content[0].file.file_data",
        ),
        ({"messages": [USER, {"role": "tool", "tool_call_id": "a", "content": "x"}]}, "messages[1].tool_call_id"),
        ({"messages": [USER, {"role": "function", "name": "f", "content": "x"}]}, "messages[1].name"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [CALL, {**CALL, "id": ""}]}]},
            "messages[0].tool_calls[1].id",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]}, "messages[0].tool_calls[0].type"),
        (
            {"messages": [{"role": "assistant", "content": "", "antwort:items": [{"type": "message"}]}]},
            "messages[0].antwort:items[0].type",
        ),
        (
            {"messages": [{"role": "assistant", "antwort:items": [{"type": "file_search_call"}]}]},
            "messages[0].antwort:items[0].queries",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [WEATHER, {"type": "function", "function": {"name": "no name"}}]}, "tools[1].function.name"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"$ref": "#/none"}}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [WEATHER], "functions": [WEATHER["function"]]}, "functions"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"function_call": "auto"}, "function_call"),
        ({"antwort:tools": [{"type": "file_search"}]}, "antwort:tools[0].vector_store_ids"),
        ({"antwort:tools": [SEARCH, {"type": "function", "name": "f"}]}, "antwort:tools[1].type"),
        ({"antwort:tools": [{"type": "image_generation"}]}, "antwort:tools[0].type"),
        (
            {"tools": [WEATHER], "antwort:tools": [{"type": "file_search", "vector_store_ids": [1]}]},
            "antwort:tools[0].vector_store_ids[0]",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": "#/none"}}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
        ({"n": 2}, "n"),
        ({"n": "two"}, "n"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities[1]"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"stop": [""]}, "stop[0]"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 5}}, "logit_bias"),
        ({"stream_options": {"x": 1}}, "stream_options.x"),
        ({"top_k": 5}, "top_k"),
        ({"model": 5}, "model"),
    ],
)
def test_what_is_invalid_is_named_in_the_words_of_the_request(http, body, param):
    error = refused(http, **body)

    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert "input" not in error["message"].replace("input_audio", "").replace("Audio input", "")


def test_bodies_that_are_too_deep_too_long_or_no_json(http):
    deep = b'{"messages":' + b"[" * 200 + b"]" * 200 + b"}"
    many = json.dumps({"messages": [USER] * 8193}).encode()
    calls = json.dumps({"messages": [USER, *[{"role": "assistant", "tool_calls": [CALL] * 1024}] * 8]}).encode()
    for body, code in (
        (deep, "invalid_json"),
        (b"{", "invalid_json"),
        (b"\xff", "invalid_json"),
        (many, "array_above_max_length"),
        (calls, "array_above_max_length"),
    ):
        answer = http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)


def test_a_client_that_disconnects_cancels_the_answer(http):
    before = cancelled_answers(http)
    body = {"messages": [{"role": "user", "content": "forever"}], "stream": True}
    with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert "begun" in next(text for text in answer.iter_text() if "begun" in text)

    wait_until(lambda: cancelled_answers(http) > before)


def cancelled_answers(http) -> float:
    """The answers that the metrics count as cancelled."""
    counted = re.search(
        r'antwort_responses_total{model="scripted",status="cancelled"} (\S+)', http.get("/metrics").text
    )
    return float(counted[1]) if counted else 0
