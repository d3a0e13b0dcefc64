from __future__ import annotations

import pytest

from weakincentives.adapters.openai import wire
from weakincentives.budget import TokenUsage
from weakincentives.prompt import OutputSchema, ToolSpec


def test_the_parts_of_a_request_are_named_as_the_api_names_them():
    spec = ToolSpec("echo", "Echo.", {"type": "object"}, strict=True)

    assert wire.function_tool(spec) == {
        "type": "function",
        "name": "echo",
        "description": "Echo.",
        "parameters": {"type": "object"},
        "strict": True,
    }
    assert wire.function_choice("echo") == {"type": "function", "name": "echo"}
    assert wire.function_call_output("call_1", "hi") == {
        "type": "function_call_output",
        "call_id": "call_1",
        "output": "hi",
    }
    assert wire.json_schema(OutputSchema("Out", {"type": "object"}, strict=False))["type"] == "json_schema"
    assert wire.message("user", "hi") == {"type": "message", "role": "user", "content": "hi"}
    assert wire.assistant_message("hi")["role"] == "assistant"


def test_usage_is_read_in_full_and_may_be_missing():
    usage = {
        "input_tokens": 9,
        "output_tokens": 5,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens_details": {"reasoning_tokens": 3},
    }

    assert wire.parse_usage({"usage": usage}) == TokenUsage(9, 5, 4, 3)
    assert wire.parse_usage({"usage": {"input_tokens": 1}}) == TokenUsage(1)
    assert wire.parse_usage({"usage": None}) == wire.parse_usage({}) == TokenUsage()


@pytest.mark.parametrize(
    "read, told",
    [
        (lambda: wire.as_object([], "the answer"), "the answer is not an object but"),
        (lambda: wire.as_objects({}, "output"), "output is not a list"),
        (lambda: wire.as_objects([{}, 7], "output"), r"output\[1\] is not an object but 7"),
        (lambda: wire.get_str({"name": 5}, "name"), "'name' is not a string but 5"),
        (lambda: wire.get_strs({"names": "ab"}, "names"), "'names' is not a list of strings but 'ab'"),
        (lambda: wire.get_strs({"names": ["a", 5]}, "names"), "'names' is not a list of strings"),
        (lambda: wire.get_count({"n": -1}, "n"), "'n' is not a count but -1"),
        (lambda: wire.get_count({"n": "x" * 99}, "n"), "xxx…$"),
        (lambda: wire.get_call_id({"type": "x_call"}), "type 'x_call' has neither call_id nor id"),
        (lambda: wire.parse_usage({"usage": []} and {"usage": [1]}), "usage is not an object"),
    ],
)
def test_what_is_of_another_shape_is_malformed_and_said_to_be(read, told):
    with pytest.raises(wire.MalformedResponse, match=told):
        read()


def test_a_call_goes_by_its_own_id_where_it_has_no_other():
    assert wire.get_call_id({"call_id": "call_1", "id": "fc_1"}) == "call_1"
    assert wire.get_call_id({"call_id": None, "id": "ci_1"}) == "ci_1"


def test_parts_of_a_message_are_told_apart_and_unknown_ones_left_out():
    parts = [
        {"type": "output_text", "text": "a", "annotations": [{"type": "x"}]},
        {"type": "hologram"},
        {"type": "refusal", "refusal": "no"},
    ]

    assert list(wire.message_parts({"content": parts})) == [("text", "a", [{"type": "x"}]), ("refusal", "no", [])]


@pytest.mark.parametrize(
    "payload, number",
    [
        ({"param": "tools[2].type"}, 2),
        ({"param": "input"}, None),
        ({"param": None}, None),
        ("text", None),
        (None, None),
    ],
)
def test_an_error_may_be_about_one_of_the_tools(payload, number):
    assert wire.rejected_tool_index(payload) == number


@pytest.mark.parametrize(
    "status, text, gone",
    [
        (400, "400: Container is expired.", True),
        (400, "Expected container_id: cntr_1", True),
        (404, "Container with id 'cntr_1' not found", True),
        (404, "Model not found", False),
        (400, "Unknown parameter", False),
        (500, "Container is expired.", False),
        (None, "no connection", False),
    ],
)
def test_a_container_that_is_gone_is_recognized(status, text, gone):
    assert wire.is_container_expired(status, text, "cntr_1") is gone
