from __future__ import annotations

import pytest

from weakincentives.adapters.openai import wire
from weakincentives.budget import TokenUsage
from weakincentives.prompt import OutputSchema, ToolSpec


def test_request_parts_use_the_wire_names():
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


def test_usage_is_parsed_and_optional():
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
    "read, expected",
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
def test_wrong_shapes_are_malformed_with_a_message(read, expected):
    with pytest.raises(wire.MalformedResponse, match=expected):
        read()


def test_call_id_falls_back_to_item_id():
    assert wire.get_call_id({"call_id": "call_1", "id": "fc_1"}) == "call_1"
    assert wire.get_call_id({"call_id": None, "id": "ci_1"}) == "ci_1"


def test_message_parts_skip_unknown_types():
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
def test_rejected_tool_index_is_read_from_param(payload, number):
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
def test_expired_container_errors_are_recognized(status, text, gone):
    assert wire.is_container_expired(status, text, "cntr_1") is gone


@pytest.mark.parametrize(
    "status, payload, expected",
    [
        (400, {"param": "context_management", "message": "?"}, True),
        (400, {"param": "context_management[0].type"}, True),
        (422, {"param": "body.context_management"}, True),
        (400, {"param": "input", "message": "context_management is fine"}, False),
        (400, {"param": None, "message": "Unknown parameter: 'context_management'."}, True),
        (422, {"detail": [{"loc": ["body", "context_management"]}]}, True),
        (400, {"message": "no_context_management_here"}, False),
        (500, {"param": "context_management"}, False),
        (400, "context_management", False),
        (None, None, False),
    ],
)
def test_refused_parameters_are_recognised(status, payload, expected):
    assert wire.rejects_parameter(status, payload, "context_management") is expected


def test_error_code_of_any_payload():
    assert wire.error_code({"code": "x"}) == "x"
    assert [wire.error_code(payload) for payload in ({"code": 5}, {}, None, "text")] == [""] * 4


@pytest.mark.parametrize(
    "status, text, expected",
    [
        (400, "Not available under Zero Data Retention.", True),
        (403, "Containers are not enabled for this organization.", True),
        (404, "No containers: ZDR.", True),
        (400, "Container is expired.", False),
        (400, "Unknown parameter: container.", False),
        (500, "zero data retention", False),
    ],
)
def test_refusals_because_of_zero_data_retention(status, text, expected):
    assert wire.is_zero_retention_refusal(status, text) is expected
