from __future__ import annotations

import msgspec
import pytest

from antwort.api.errors import ApiError
from antwort.api.requests import CreateResponse, check, check_input, decode, read_input

FUNCTION = {"type": "function", "name": "add"}
NAMESPACE = {"type": "namespace", "name": "math", "description": "", "tools": [FUNCTION]}
MCP = {"type": "mcp", "server_label": "a", "server_url": "https://x.example"}


def request(**fields: object) -> CreateResponse:
    return decode(msgspec.json.encode({"model": "m", "input": "hi", **fields}), CreateResponse)


@pytest.mark.parametrize(
    "fields, param, code",
    [
        ({"previous_response_id": "resp_1", "conversation": "conv_1"}, "previous_response_id",
         "mutually_exclusive_parameters"),
        ({"background": True, "store": False}, "background", "invalid_value"),
        ({"tools": [FUNCTION, FUNCTION]}, "tools[1].name", "invalid_value"),
        ({"tools": [NAMESPACE, FUNCTION, NAMESPACE]}, "tools[2].tools[0].name", "invalid_value"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name", "missing_required_parameter"),
        ({"tool_choice": {"type": "namespace"}}, "tool_choice.name", "missing_required_parameter"),
        ({"tool_choice": {"type": "mcp", "name": "x"}}, "tool_choice.server_label", "missing_required_parameter"),
        ({"tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice.mode", "missing_required_parameter"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.tools",
         "missing_required_parameter"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom"}]}},
         "tool_choice.tools[0].name", "missing_required_parameter"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "unsupported_parameter"),
    ],
)  # fmt: skip
def test_rules_beyond_the_types_are_checked(fields: dict[str, object], param: str, code: str):
    with pytest.raises(ApiError) as caught:
        check(request(**fields))

    assert (caught.value.status, caught.value.param, caught.value.code) == (400, param, code)


def test_valid_requests_pass():
    check(request())
    check(request(input=None, previous_response_id="resp_1"))
    check(request(tools=[FUNCTION, NAMESPACE], tool_choice={"type": "function", "name": "add"}))
    check(request(tools=[MCP], tool_choice={"type": "mcp", "server_label": "a"}))
    check(request(input=None))


@pytest.mark.parametrize("value, code", [(None, "missing_required_parameter"), ([], "empty_array")])
def test_input_is_required_without_a_history(value: object, code: str):
    with pytest.raises(ApiError) as caught:
        check_input(request(input=value))

    assert (caught.value.param, caught.value.code) == ("input", code)
    check_input(request(input=value, previous_response_id="resp_1"))
    check_input(request(input=value, conversation="conv_1"))
    check_input(request(input=""))


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"service_tier": "gold"}, "service_tier"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"truncation": "sometimes"}, "truncation"),
        ({"tools": [{"type": "custom", "name": "f", "format": {"type": "grammar", "syntax": "bnf"}}]},
         "tools[0].format.syntax"),
        ({"tools": [{"type": "function", "name": "f", "is_async": True}]}, "tools[0].is_async"),
    ],
)  # fmt: skip
def test_invalid_values_name_the_parameter(fields: dict[str, object], param: str):
    with pytest.raises(ApiError) as caught:
        request(**fields)

    assert (caught.value.status, caught.value.param) == (400, param)


def test_the_async_field_of_a_tool_round_trips():
    tool = {**FUNCTION, "async": True}

    assert msgspec.to_builtins(request(tools=[tool]).tools)[0]["async"] is True


def test_a_string_input_is_a_user_message():
    (item,) = read_input("hi")

    assert item.raw == {"type": "message", "role": "user", "content": "hi"}
    assert read_input(None) == []


def test_an_invalid_item_is_named_by_its_path():
    with pytest.raises(ApiError) as caught:
        read_input([{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "input_text"}]}])

    assert caught.value.param == "input[1].content[0].text"


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 100_000, b"{" + b" " * 100_000, b"\x00", b"nul"])
def test_bodies_that_are_not_json_are_rejected(body: bytes):
    with pytest.raises(ApiError) as caught:
        decode(body, CreateResponse)

    assert caught.value.status == 400


def test_a_conversation_is_given_as_a_string_or_an_object():
    assert request(conversation="conv_1").conversation_id == "conv_1"
    assert request(conversation={"id": "conv_1"}).conversation_id == "conv_1"
