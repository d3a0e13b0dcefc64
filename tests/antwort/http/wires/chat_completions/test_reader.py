from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.errors import ApiError
from antwort.api.requests import check, read_input
from antwort.api.tools import ToolTypes
from antwort.http.wires.chat_completions.reader import ChatRequest, read_chat

TYPES = ToolTypes(("function", "custom", "namespace", "tool_search", "apply_patch", "mcp", "shell", "web_search"))
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
VALID: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "Be kind."}]},
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "name": "ann",
            "content": [
                {"type": "text", "text": "Hi"},
                {"type": "image_url", "image_url": {"url": "https://x.example/a.png", "detail": "low"}},
                {"type": "image_url", "image_url": "data:image/png;base64,iVBORw0KGgo="},
                {"type": "file", "file": {"file_data": "data:text/plain;base64,SGk=", "filename": "a.txt"}},
            ],
        },
        {"role": "assistant", "content": "Yes", "refusal": None, "tool_calls": [CALL], "reasoning_content": "Hm"},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "tool_calls": [{"id": "b", "type": "custom", "custom": {"name": "c", "input": "x"}}]},
        {"role": "tool", "tool_call_id": "b", "content": "y"},
        {"role": "assistant", "content": [{"type": "text", "text": "No"}, {"type": "refusal", "refusal": "Never."}]},
        {"role": "assistant", "content": None, "function_call": {"name": "g", "arguments": "{}"}},
        {"role": "function", "name": "g", "content": "z"},
        {"role": "assistant", "antwort:items": [{"type": "web_search_call", "id": "ws_1", "status": "completed"}]},
    ],
    "tools": [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": False}},
        {
            "type": "custom",
            "custom": {"name": "c", "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}}},
        },
    ],
    "tool_choice": {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
    },
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}},
    "stop": ["END"],
    "logit_bias": {"1": -100},
    "metadata": {"a": "b"},
    "stream": True,
    "stream_options": {"include_usage": True},
    "modalities": ["text"],
    "web_search_options": {"user_location": {"type": "approximate", "approximate": {"city": "Rome"}}},
    "antwort:tools": [
        {"type": "mcp", "server_label": "s", "server_url": "https://x.example", "require_approval": "never"}
    ],
}
VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


def read(body: Any, types: ToolTypes = TYPES) -> ChatRequest:
    return read_chat(msgspec.json.encode(body), types)


def refusal(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read({"messages": [{"role": "user", "content": "hi"}], **fields})
    return caught.value


def problem(body: Any) -> ApiError | None:
    """Why a request is refused, also by the first checks of the engine."""
    try:
        chat = read(body)
    except ApiError as error:
        return error
    try:
        assert isinstance(chat.asked.input, list)
        read_input(chat.asked.input, TYPES)
        check(chat.asked, TYPES)
    except ApiError as error:
        return chat.names.translate(error)
    return None


def paths(value: Any, path: tuple[Any, ...] = ()):
    """The paths of all values inside."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*path, key)
        yield from paths(one, (*path, key))


def test_messages_become_items_in_their_order():
    chat = read(VALID)
    items = chat.asked.input
    assert isinstance(items, list)

    assert [item.get("role") or item["type"] for item in items] == [
        "system",
        "developer",
        "user",
        "reasoning",
        "assistant",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "assistant",
        "function_call",
        "function_call_output",
        "web_search_call",
    ]
    assert items[10]["call_id"] == items[11]["call_id"]
    assert (chat.sampling.stop, chat.sampling.logit_bias) == (("END",), {"1": -100.0})
    assert (chat.asked.store, chat.form.is_streamed, chat.form.has_usage) == (False, True, True)


def test_the_engine_accepts_the_items_and_tools():
    asked = read(VALID).asked

    assert isinstance(asked.input, list)
    assert all(item.known is not None for item in read_input(asked.input, TYPES))
    check(asked, TYPES)


@given(path=st.sampled_from(list(paths(VALID))), value=VALUES)
def test_any_value_at_any_place_is_read_or_refused_by_its_name(path, value):
    body = copy.deepcopy(VALID)
    inner: Any = body
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    error = problem(body)

    if error is not None:
        root = (error.param or "").partition(".")[0].partition("[")[0]
        assert root in {*VALID, "", "functions"}
        assert (error.status, "input[" in error.message) == (400, False)


@given(st.binary(max_size=60) | st.text(alphabet='{}[]":,amessg0', max_size=40).map(str.encode))
def test_bytes_that_are_no_request_are_refused(body):
    with pytest.raises(ApiError) as caught:
        read_chat(body, TYPES)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "tool, param",
    [
        ({"type": "mcp", "server_label": "s"}, "antwort:tools[0].require_approval"),
        ({"type": "mcp", "server_label": "s", "require_approval": "always"}, "antwort:tools[0].require_approval"),
        ({"type": "mcp", "server_label": "no label"}, "antwort:tools[0].server_label"),
        ({"type": "shell", "environment": {"type": "local"}}, "antwort:tools[0].environment"),
        ({"type": "apply_patch"}, "antwort:tools[0].type"),
        ({"type": "function", "name": "f"}, "antwort:tools[0].type"),
        ({"type": "file_search", "vector_store_ids": 5}, "antwort:tools[0].type"),
        ({"type": "poem"}, "antwort:tools[0].type"),
        ({}, "antwort:tools[0].type"),
    ],
)
def test_tools_that_the_server_cannot_run_for_a_chat_completion(tool, param):
    error = refusal(**{"antwort:tools": [tool]})

    assert (error.status, error.param) == (400, param)


def test_tools_that_the_server_lacks_are_left_out_if_it_ignores_them():
    types = ToolTypes(("function",), ignores_others=True)
    chat = read({"messages": [], "antwort:tools": [{"type": "image_generation"}]}, types)

    assert len(chat.asked.tools or ()) == 1
    assert chat.names.path("tools[0]") == "antwort:tools[0]"


def test_an_output_needs_its_call_before_it():
    user, output = {"role": "user", "content": "hi"}, {"role": "tool", "tool_call_id": "a", "content": "x"}
    call = {"role": "assistant", "tool_calls": [CALL]}

    assert refusal(messages=[user, output, call]).param == "messages[1].tool_call_id"
    function = {"role": "function", "name": "g", "content": "x"}
    called = {"role": "assistant", "function_call": {"name": "g", "arguments": ""}}
    assert refusal(messages=[called, function, function]).param == "messages[2].name"


def test_calls_of_the_same_function_in_the_deprecated_form_are_answered_in_order():
    called = {"role": "assistant", "function_call": {"name": "g", "arguments": ""}}
    outputs = [{"role": "function", "name": "g", "content": text} for text in "ab"]
    items: Any = read({"messages": [called, called, *outputs]}).asked.input

    assert [item["call_id"] for item in items[:2]] == [item["call_id"] for item in items[2:]]
    assert items[0]["call_id"] != items[1]["call_id"]
