"""Requests with any value in any field: an answer of the reader, or an error that names a field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antwort.api.errors import ApiError, invalid
from antwort.api.requests import check, read_input
from antwort.http.wires.messages.errors import error_answer
from antwort.http.wires.messages.history import Origin
from antwort.http.wires.messages.reader import Paths, parse_count, parse_create

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ("system", "tools", "tool_choice", "thinking", "output_config", "stop_sequences", "container", "mcp_servers")
TYPES = (
    "text", "image", "document", "search_result", "tool_use", "tool_result", "thinking", "redacted_thinking",
    "server_tool_use", "web_search_tool_result", "code_execution_tool_result", "container_upload", "poem",
)  # fmt: skip
NAMES = ("text", "source", "id", "name", "input", "tool_use_id", "content", "thinking", "signature", "data", "file_id")
SOURCE = st.fixed_dictionaries({"type": st.sampled_from(["base64", "url", "file", "text", "content"])}).flatmap(
    lambda kind: st.dictionaries(
        st.sampled_from(["data", "url", "file_id", "media_type", "content"]), JSON, max_size=5
    ).map(lambda rest: {**rest, **kind})
)
BLOCK = st.fixed_dictionaries(
    {"type": st.sampled_from(TYPES)},
    optional={name: JSON | (SOURCE if name == "source" else st.text(max_size=3)) for name in NAMES},
)
MESSAGE = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system"]),
        "content": st.text(max_size=5) | st.lists(BLOCK, max_size=4),
    }
)
BODY = {"model": "m", "max_tokens": 10}


def attempt(body: dict[str, Any]) -> None:
    """Read a request. What is read is valid for the engine; an error is a 4xx in the shape of this wire."""
    try:
        read = parse_create(json.dumps(body).encode())
        request = read.request
        assert isinstance(request.input, list)
        assert len(request.input) == len(read.paths.items)
        assert len(request.tools or ()) == len(read.paths.tools)
        check(request)
        read_input(request.input)
    except ApiError as error:
        answer = error_answer(error, "req_1")
        assert 400 <= answer.status < 500
        assert json.loads(answer.body)["error"]["message"]


@given(st.lists(MESSAGE, max_size=5))
def test_any_messages(messages):
    attempt({**BODY, "messages": messages})


@given(st.dictionaries(st.sampled_from(FIELDS), JSON))
@example({"tools": [{"type": "web_search_20250305", "user_location": {"city": "x" * 500}}]})
@example({"tools": [{"type": "web_search_20250305", "allowed_domains": [1]}]})
@example({"tools": [{"type": 1}]})
@example({"tools": [{"name": "a", "input_schema": {"type": "array"}}]})
def test_any_parameters(fields):
    attempt({**BODY, "messages": [{"role": "user", "content": "hello"}], **fields})


def read_items(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    items = parse_create(json.dumps({**BODY, "messages": messages}).encode()).request.input
    assert isinstance(items, list)
    return [item if isinstance(item, dict) else {} for item in items]


def test_messages_of_one_role_are_one():
    messages = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"},
    ]

    assert [(item["role"], [part["text"] for part in item["content"]]) for item in read_items(*messages)] == [
        ("user", ["a", "b"]),
        ("assistant", ["c"]),
        ("user", ["d"]),
    ]


def test_messages_of_the_system_stay_where_they_are():
    messages = [
        {"role": "system", "content": "first"},
        {"role": "user", "content": "a"},
        {"role": "system", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": ""}]},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
        {"role": "user", "content": "e"},
    ]

    assert [(item["role"], [part["text"] for part in item["content"]]) for item in read_items(*messages)] == [
        ("developer", ["first"]),
        ("user", ["a"]),
        ("developer", ["b"]),
        ("user", ["c"]),
        ("assistant", ["d"]),
        ("user", ["e"]),
    ]


def test_files_without_a_container_are_refused():
    block = {"type": "container_upload", "file_id": "file_1"}
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}, block]}]
    tools = [{"type": "code_execution_20250825", "name": "code_execution"}]
    body = {**BODY, "messages": messages}

    assert parse_create(json.dumps({**body, "tools": tools}).encode()).request.tools
    with pytest.raises(ApiError) as caught:
        parse_create(json.dumps(body).encode())
    assert caught.value.param == "messages.0.content.1"


def test_the_text_behind_a_result_has_the_path_of_its_message():
    call = {"type": "tool_use", "id": "t", "name": "a", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "b"}
    messages = [
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result, {"type": "text", "text": "c"}]},
    ]
    paths = parse_create(json.dumps({**BODY, "messages": messages}).encode()).paths

    assert paths.items[2] == Origin("messages.1", ["messages.1.content.1"])


@pytest.mark.parametrize("given_tokens, tokens", [(1, 16), (16, 16), (64_000, 64_000)])
def test_small_limits_are_raised_to_what_models_accept(given_tokens, tokens):
    body = {**BODY, "max_tokens": given_tokens, "messages": [{"role": "user", "content": "a"}]}

    assert parse_create(json.dumps(body).encode()).request.max_output_tokens == tokens


def test_long_ids_of_calls_are_shortened():
    identifier = "toolu_" + "x" * 500
    content = [{"type": "tool_use", "id": identifier, "name": "a", "input": {}}]
    result = [{"type": "tool_result", "tool_use_id": identifier, "content": "b"}]
    messages = [{"role": "assistant", "content": content}, {"role": "user", "content": result}]
    items = parse_count(json.dumps({"model": "m", "messages": messages}).encode()).request.input
    assert isinstance(items, list)
    call, output = items

    assert call["call_id"] == output["call_id"]
    assert len(call["call_id"]) <= 64


@pytest.mark.parametrize(
    "message, param, expected",
    [
        ("Invalid 'input[0].content[1].image_url': x", "input[0].content[1].image_url", "messages.0.content.4"),
        ("x", "input[0]", "messages.0"),
        ("x", "input[9].content[0]", "input[9].content[0]"),
        ("x", "tools[0].parameters", "tools.2.input_schema"),
        ("x", "tools[0].container", "container"),
        ("x", "max_output_tokens", "max_tokens"),
        ("x", "text.format.schema", "output_config.format.schema"),
    ],
)
def test_paths_of_the_engine_are_translated(message, param, expected):
    paths = Paths([Origin("messages.0", ["messages.0.content.1", "messages.0.content.4"])], ["tools.2"])
    error = paths.translate(invalid(message, param=param))

    assert error.param == expected
    assert "input[0]" not in error.message
