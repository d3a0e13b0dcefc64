"""POST /v1/messages on the server process: the SDK of Anthropic, and requests that Claude Code sends."""

from __future__ import annotations

import base64
from typing import Any

import anthropic
import httpx2
import pytest
from fixtures_code_interpreter import metric
from fixtures_server import SCRIPT, run_server
from message_stream import check_stream, fold_events, read_events
from waiting import wait_until

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20)).decode()
PDF = base64.b64encode(b"%PDF-1.4 an empty one").decode()
WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
SEEN = "<<find /seen-[a-z0-9-]+/>>"
CONTEXT_FAULT = {"fault": {"code": "context_length_exceeded", "status": 400}}
REPLIES = {
    "fragment": 4,
    "answers": [
        {"when": {"text": "thinks"}, "reply": [{"reasoning": "One."}, {"text": "Two."}]},
        {"when": {"text": "sealed"}, "reply": [{"summary": "Short."}, {"sealed": "c2VhbGVk"}, {"text": "Done."}]},
        {"when": {"text": "no arguments"}, "reply": [{"call": {"name": "get_weather", "arguments": {}, "id": "same"}}]},
        {"when": {"text": "broken call"}, "reply": [{"call": {"name": "get_weather", "arguments": '{"city": "Ber'}}]},
        {
            "when": {"text": "edit"},
            "reply": [
                {"call": {"name": "str_replace_based_edit_tool", "arguments": {"command": "view", "path": "/a"}}}
            ],
        },
        {
            "when": {"text": "too long"},
            "reply": [
                {
                    "fault": {
                        "code": "context_length_exceeded",
                        "status": 400,
                        "message": "Your input exceeds the context window. Upstream message: maximum context length is "
                        "4096 tokens, however you requested 5000 tokens.",
                    }
                }
            ],
        },
        {
            "when": {"text": "full"},
            "reply": [{"text": "so far"}, {"fault": {"code": "context_length_exceeded", "status": 400}}],
        },
        {"when": {"text": "overload"}, "reply": [{"fault": {"status": 503, "retry_after": 3, "retryable": True}}]},
        {"when": {"text": "filtered"}, "reply": [{"text": "Half"}], "finish": "content_filter"},
        {
            "when": {"text": "cached"},
            "reply": [{"text": "ok"}],
            "usage": {"input_tokens": 100, "cached_tokens": 60, "output_tokens": 2},
        },
        {"when": {"text": "ceiling"}, "times": 1, "reply": [CONTEXT_FAULT]},
        {"when": {"text": "recall"}, "reply": [{"text": SEEN}]},
        {"when": {"text": "pause"}, "reply": [{"delay": 0.6}, {"text": "Late."}]},
        *SCRIPT["answers"],
    ],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    config = {"server": {"keep_alive": 0.2}, "models": {"scripted": {"kind": "scripted", "script": "script.yaml"}}}
    with run_server(tmp_path_factory.mktemp("messages"), config, script=REPLIES) as running:
        yield running


@pytest.fixture(scope="module")
def http(server):
    with server.http(headers={"anthropic-version": "2023-06-01"}) as client:
        yield client


@pytest.fixture(scope="module")
def sdk(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def request(text: str | list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"model": "scripted", "max_tokens": 1000, "messages": [{"role": "user", "content": text}], **more}


def post(http: httpx2.Client, body: dict[str, Any]) -> httpx2.Response:
    return http.post("/v1/messages?beta=true", json=body)


def stream(http: httpx2.Client, body: dict[str, Any], *, is_broken: bool = False) -> list[dict[str, Any]]:
    answer = post(http, {**body, "stream": True})
    assert answer.status_code == 200, answer.text
    events = read_events(answer.text)
    check_stream(events, is_broken=is_broken)
    return events


def answered(http: httpx2.Client, body: dict[str, Any]) -> dict[str, Any]:
    """The answer, which must be the same with and without a stream, except for its ids."""
    whole = post(http, body)
    assert whole.status_code == 200, whole.text
    folded = fold_events(stream(http, body))
    assert without_ids(folded) == without_ids(whole.json())
    return whole.json()


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    content = [
        {name: value for name, value in block.items() if name not in ("id", "signature")}
        for block in message["content"]
    ]
    return {**message, "id": "", "content": content}


def error_of(answer: httpx2.Response) -> tuple[int, str, str]:
    body = answer.json()
    assert body["type"] == "error"
    assert body["request_id"] == answer.headers["request-id"]
    return answer.status_code, body["error"]["type"], body["error"]["message"]


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_text(http):
    message = answered(http, request("hello"))

    assert message["content"] == [{"type": "text", "text": "You said: hello"}]
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", "scripted")
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    assert message["id"] != answered(http, request("hello"))["id"]


def test_the_sdk_reads_answers_and_streams(sdk):
    whole = sdk.messages.create(**request("weather", tools=[WEATHER]))
    with sdk.messages.stream(**request("weather", tools=[WEATHER])) as events:
        streamed = events.get_final_message()

    for message in (whole, streamed):
        assert message.stop_reason == "tool_use"
        assert [(block.name, block.input) for block in message.content] == [
            ("get_weather", {"city": "Berlin"}),
            ("get_weather", {"city": "Paris"}),
        ]
    assert whole._request_id.startswith("req_")
    assert streamed.usage == whole.usage


def test_tools_are_run_by_the_client_and_their_results_are_read(sdk):
    asked = request("weather", tools=[WEATHER])
    first = sdk.messages.create(**asked)
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "21 degrees"}]}
        for block in first.content
    ]
    history = [
        *asked["messages"],
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": results},
    ]
    second = sdk.messages.create(**{**asked, "messages": history})

    assert second.content[0].text == '{"degrees": 21}'
    assert len({block.id for block in first.content}) == 2


def test_ids_of_calls_are_unique_where_the_model_repeats_its_own(http):
    ids = [answered(http, request("no arguments", tools=[WEATHER]))["content"][0]["id"] for _ in range(2)]

    assert len(set(ids)) == 2
    assert all(one.startswith("toolu_") for one in ids)


def test_a_call_without_arguments_has_an_empty_input(http):
    (block,) = answered(http, request("no arguments", tools=[WEATHER]))["content"]

    assert block["input"] == {}


def test_arguments_that_are_no_json_are_streamed_as_they_are(http):
    (block,) = answered(http, request("broken call", tools=[WEATHER]))["content"]

    assert block["input"] == {"not_json": '{"city": "Ber'}


def test_reasoning_is_shown_to_clients_that_ask_for_it(http):
    shown = answered(http, request("thinks", thinking={"type": "adaptive"}))
    enabled = answered(http, request("thinks", thinking={"type": "enabled", "budget_tokens": 1024}))
    hidden = [answered(http, request("thinks", **more)) for more in ({}, {"thinking": {"type": "disabled"}})]

    assert shown["content"] == [
        {"type": "thinking", "thinking": "One.", "signature": ""},
        {"type": "text", "text": "Two."},
    ]
    assert enabled["content"] == shown["content"]
    assert [message["content"] for message in hidden] == [[{"type": "text", "text": "Two."}]] * 2


def test_encrypted_reasoning_is_the_signature_and_comes_back(http):
    asked = request("sealed", thinking={"type": "adaptive"})
    thinking, text = answered(http, asked)["content"]
    history = [
        *asked["messages"],
        {"role": "assistant", "content": [thinking, text]},
        {"role": "user", "content": "hi"},
    ]
    again = post(http, {**asked, "messages": history})
    forged = {**thinking, "signature": "EqQBCgIYAhIkforeign"}
    foreign = post(http, {**asked, "messages": [*history[:1], {"role": "assistant", "content": [forged]}, history[2]]})

    assert thinking["thinking"] == "Short."
    assert thinking["signature"].endswith(".c2VhbGVk")
    assert (again.status_code, foreign.status_code) == (200, 200)


@pytest.mark.parametrize(
    "text, reason",
    [("refuse", "refusal"), ("cut", "max_tokens"), ("filtered", "refusal"), ("full", "model_context_window_exceeded")],
)
def test_stop_reasons(http, text, reason):
    assert answered(http, request(text))["stop_reason"] == reason


def test_stop_sequences(http):
    message = answered(http, request("hello", stop_sequences=["absent", "said"]))

    assert message["content"] == [{"type": "text", "text": "You "}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "said")


def test_a_model_without_space_for_max_tokens_answers_within_its_window(http):
    """Clients send the largest `max_tokens` that any model has. The script refuses the first request of the model."""
    message = fold_events(stream(http, request("ceiling", max_tokens=200_000)))

    assert message["content"] == [{"type": "text", "text": "You said: ceiling"}]


def test_usage_counts_cached_tokens_apart(http):
    usage = answered(http, request("cached"))["usage"]

    assert usage == {
        "input_tokens": 40,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 60,
        "output_tokens": 2,
    }


def test_pings_while_the_model_is_silent(http):
    kinds = [event["type"] for event in stream(http, request("pause"))]

    assert kinds[:2] == ["message_start", "ping"]
    assert kinds[-1] == "message_stop"


def test_structured_output(http):
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    for config in (
        {"output_config": {"effort": "high", "format": {"type": "json_schema", "schema": schema}}},
        {"output_format": {"type": "json_schema", "schema": schema}},
    ):
        assert post(http, request("hello", **config)).status_code == 200


# ── what clients send ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_request_as_claude_code_sends_it(http):
    body = {
        "model": "scripted",
        "max_tokens": 32000,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: seen-billing"},
            {"type": "text", "text": "seen-identity", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "seen-system", "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "seen-reminder"}]},
            {
                "role": "user",
                "content": [{"type": "text", "text": "seen-task", "cache_control": {"type": "ephemeral"}}],
            },
            {"role": "system", "content": "seen-environment", "output_config": {"effort": "low"}},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "seen-thinking", "signature": ""},
                    {"type": "redacted_thinking", "data": "seen-redacted"},
                    {"type": "text", "text": "seen-answer", "citations": None},
                    {
                        "type": "tool_use",
                        "id": "toolu_1",
                        "name": "Bash",
                        "input": {"command": "seen-command"},
                        "caller": {"type": "direct"},
                    },
                    {"type": "tool_use", "id": "toolu_2", "name": "Read", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "seen-output", "is_error": True},
                    {
                        "tool_use_id": "toolu_2",
                        "content": [
                            {"source": {"data": PNG, "media_type": "image/png", "type": "base64"}, "type": "image"},
                            {"type": "text", "text": "seen-image"},
                        ],
                        "type": "tool_result",
                    },
                    {"type": "text", "text": "recall"},
                ],
            },
            {"role": "system", "content": [{"type": "text", "text": "seen-last"}]},
        ],
        "tools": [
            {**WEATHER, "eager_input_streaming": True, "strict": True, "cache_control": {"type": "ephemeral"}},
            {
                "name": "DeferredToolPlaceholder",
                "input_schema": {"type": "object", "properties": {}},
                "defer_loading": True,
            },
        ],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "thinking": {"type": "adaptive", "display": "updates"},
        "output_config": {"effort": "high", "task_budget": {"total": 5}},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "metadata": {"user_id": '{"device_id": "x"}'},
        "betas_of_tomorrow": True,
    }
    headers = {"anthropic-beta": "claude-code-20250219,of-tomorrow-2030-01-01", "accept": "application/json"}
    answer = http.post("/v1/messages?beta=true", json={**body, "stream": True}, headers=headers)
    events = read_events(answer.text)
    check_stream(events)
    (block,) = fold_events(events)["content"]

    assert block["text"].split("\n") == [
        "seen-identity", "seen-system", "seen-reminder", "seen-task", "seen-environment", "seen-thinking",
        "seen-answer", "seen-command", "seen-output", "seen-image", "seen-last",
    ]  # fmt: skip


def test_images_and_documents(http):
    content = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "seen-text"}, "title": "T"},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "seen-content"}]}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": PDF},
            "context": "seen-context",
        },
        {
            "type": "search_result",
            "source": "s",
            "title": "seen-title",
            "content": [{"type": "text", "text": "seen-result"}],
        },
        {"type": "text", "text": "recall"},
    ]
    (block,) = answered(http, request(content))["content"]

    assert block["text"].split("\n") == ["seen-text", "seen-content", "seen-context", "seen-title", "seen-result"]


def test_a_deferred_tool_is_offered_when_the_history_names_it(http):
    deferred = {**WEATHER, "defer_loading": True}
    search = {"name": "ToolSearch", "input_schema": {"type": "object"}}
    found = [
        {"role": "user", "content": "find it"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "ToolSearch", "input": {}}]},
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t",
                    "content": [{"type": "tool_reference", "tool_name": "get_weather"}],
                },
                {"type": "text", "text": "weather"},
            ],
        },
    ]
    before = answered(http, request("weather", tools=[deferred, search]))
    after = answered(http, {**request("weather", tools=[deferred, search]), "messages": found})

    assert before["stop_reason"] == "end_turn"
    assert after["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    "choice, reason",
    [
        ({"type": "auto"}, "tool_use"),
        ({"type": "any"}, "tool_use"),
        ({"type": "tool", "name": "get_weather"}, "tool_use"),
        ({"type": "none"}, "end_turn"),
    ],
)
def test_tool_choice(http, choice, reason):
    assert answered(http, request("weather", tools=[WEATHER], tool_choice=choice))["stop_reason"] == reason


def test_without_parallel_tool_use_there_is_one_call(http):
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    message = answered(http, request("weather", tools=[WEATHER], tool_choice=choice))

    assert [block["input"] for block in message["content"]] == [{"city": "Berlin"}]


def test_tools_that_a_type_defines_are_run_by_the_client(http):
    tools = [
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 100},
        {"type": "memory_20250818", "name": "memory"},
    ]
    (block,) = answered(http, request("edit", tools=tools))["content"]

    assert (block["name"], block["input"]) == ("str_replace_based_edit_tool", {"command": "view", "path": "/a"})


# ── token counts and models ──────────────────────────────────────────────────────────────────────────────────────────


def test_count_tokens(sdk, http):
    asked = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}
    short = sdk.messages.count_tokens(**asked).input_tokens
    with_tools = sdk.messages.count_tokens(**asked, tools=[WEATHER], system="Be brief.").input_tokens
    ends_with_assistant = [*asked["messages"], {"role": "assistant", "content": "Hi."}]

    assert 0 < short < with_tools
    assert sdk.messages.count_tokens(**{**asked, "messages": ends_with_assistant}).input_tokens > short
    assert error_of(http.post("/v1/messages/count_tokens", json={"model": "scripted"}))[2] == "messages: Field required"


def test_models_in_the_shape_of_this_wire(sdk, server):
    listed = sdk.models.list(limit=1000)
    with server.http() as plain:
        openai_shape = plain.get("/v1/models").json()

    assert [(model.type, model.id, model.display_name) for model in listed] == [("model", "scripted", "scripted")]
    assert (listed.has_more, listed.first_id, listed.last_id) == (False, "scripted", "scripted")
    assert sdk.models.retrieve("scripted").id == "scripted"
    assert openai_shape["object"] == "list"


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def image(**source: str) -> dict[str, Any]:
    return {"type": "image", "source": source}


@pytest.mark.parametrize(
    "body, message",
    [
        ({"max_tokens": None}, "max_tokens: Invalid type: expected an integer, but got null instead."),
        ({"max_tokens": 0}, "max_tokens: integer below minimum value. Expected a value >= 1, but got 0 instead."),
        ({"messages": []}, "messages: at least one message is required"),
        ({"messages": [{"role": "tool", "content": ""}]}, "messages.0.role: Invalid value"),
        ({"messages": [{"role": "user"}]}, "messages.0.content: Field required"),
        (user({"type": "poem"}), "messages.0.content.0: Input tag 'poem' found"),
        (user({"text": "x"}), "messages.0.content.0.type: Field required"),
        (user({"type": "tool_result", "tool_use_id": "t"}), "messages.0.content.0: unexpected `tool_use_id`"),
        (
            user({"type": "tool_use", "id": "t", "name": "a", "input": {}}),
            "messages.0.content.0: `tool_use` blocks are not allowed in messages with the role 'user'.",
        ),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "{"}]},
            "messages: This server does not continue",
        ),
        (
            user(image(type="file", file_id="file-x")),
            "messages.0.content.0: File with id 'file-x' not found.",
        ),
        (
            user(image(type="base64", media_type="image/png", data="%")),
            "messages.0.content.0.source.base64.data: Invalid base64 data",
        ),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools.0.name: string does not match pattern."),
        ({"tools": [{"name": "a"}]}, "tools.0.input_schema: Field required"),
        ({"tools": [{"type": "web_fetch_20250910"}]}, "tools.0: Tools of the type 'web_fetch_20250910'"),
        ({"tools": [{"type": "poem_1", "name": "a"}]}, "tools.0: Input tag 'poem_1' found using 'type'"),
        ({"tools": [WEATHER, WEATHER]}, "tools.1"),
        ({"tool_choice": {"type": "tool", "name": "absent"}, "tools": [WEATHER]}, "tool_choice: Tool choice 'absent'"),
        ({"tool_choice": {"type": "tool"}, "tools": [WEATHER]}, "tool_choice.name: Field required"),
        ({"temperature": 1.5}, "temperature: decimal above maximum value."),
        ({"stop_sequences": [""]}, "stop_sequences.0: empty string."),
    ],
)
def test_invalid_requests_name_the_field(http, body, message):
    answer = post(http, {**request("hello"), **body})
    status, kind, text = error_of(answer)

    assert (status in (400, 404), kind in ("invalid_request_error", "not_found_error")) == (True, True)
    assert text.startswith(message)
    assert answer.headers["x-should-retry"] == "false"


def test_a_missing_max_tokens_is_an_error_in_the_words_of_the_api(http):
    body = request("hello")
    del body["max_tokens"]

    assert error_of(post(http, body)) == (400, "invalid_request_error", "max_tokens: Field required")


@pytest.mark.parametrize("streams", [False, True])
def test_a_model_that_fails_before_its_answer_is_an_error_with_its_status(http, streams):
    busy = post(http, request("busy", stream=streams))
    overloaded = post(http, request("overload", stream=streams))
    long = post(http, request("too long", stream=streams))

    assert error_of(busy)[:2] == (429, "rate_limit_error")
    assert busy.headers["retry-after"] == "7"
    assert error_of(overloaded)[:2] == (529, "overloaded_error")
    assert (overloaded.headers["retry-after"], overloaded.headers["x-should-retry"]) == ("3", "true")
    assert error_of(long) == (400, "invalid_request_error", "prompt is too long: 5000 tokens > 4096 maximum")


def test_a_model_that_fails_in_its_answer_ends_the_stream_with_an_error(http):
    events = stream(http, request("break"), is_broken=True)
    whole = post(http, request("break"))

    assert events[-1] == {
        "type": "error",
        "error": {"type": "api_error", "message": "The script contains a fault here."},
    }
    assert error_of(whole)[:2] == (500, "api_error")


def test_errors_of_paths_and_methods_have_the_shape_of_this_wire(http, server):
    with server.http() as plain:
        assert error_of(plain.get("/v1/messages"))[:2] == (405, "invalid_request_error")
        assert error_of(plain.get("/v1/messages/batches"))[:2] == (404, "not_found_error")
        assert plain.get("/v1/messages_of_others").json()["error"]["code"] == "unknown_url"
        assert plain.post("/v1/messages", content=b"{").json()["error"]["type"] == "invalid_request_error"
    assert error_of(http.get("/v1/models/" + "x" * 600))[:2] == (404, "not_found_error")


def test_the_sdk_raises_its_own_errors(sdk):
    with pytest.raises(anthropic.RateLimitError), sdk.messages.stream(**request("busy")) as events:
        events.until_done()
    with pytest.raises(anthropic.BadRequestError, match=r"messages: at least one message is required"):
        sdk.messages.create(model="scripted", max_tokens=10, messages=[])


def test_a_client_that_disconnects_cancels_the_answer(server, http):
    with http.stream("POST", "/v1/messages", json=request("forever", stream=True)) as answer:
        for line in answer.iter_lines():
            if "content_block_delta" in line:
                break
    wait_until(lambda: metric(server, "antwort_responses_running") == 0)
