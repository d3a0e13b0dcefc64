from __future__ import annotations

import msgspec
import pytest

from antwort.api.errors import ApiError
from antwort.api.requests import CreateResponse, check, decode, read_input

FUNCTION = {"type": "function", "name": "add"}


def request(**fields: object) -> CreateResponse:
    return decode(msgspec.json.encode({"model": "m", "input": "hi", **fields}), CreateResponse)


@pytest.mark.parametrize(
    "fields, param, code",
    [
        ({"previous_response_id": "resp_1", "conversation": "conv_1"}, "previous_response_id",
         "mutually_exclusive_parameters"),
        ({"background": True, "store": False}, "background", "invalid_value"),
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": []}, "input", "empty_array"),
        ({"tools": [FUNCTION, FUNCTION]}, "tools[1].name", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "function", "name": "sub"}, "tools": [FUNCTION]}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "file_search"}]}},
         "tool_choice", "invalid_value"),
    ],
)  # fmt: skip
def test_what_the_types_do_not_say_is_checked(fields: dict[str, object], param: str, code: str):
    with pytest.raises(ApiError) as caught:
        check(request(**fields))

    assert (caught.value.status, caught.value.param, caught.value.code) == (400, param, code)


def test_what_is_right_passes():
    check(request())
    check(request(input=None, previous_response_id="resp_1"))
    check(request(tools=[FUNCTION], tool_choice={"type": "function", "name": "add"}))
    check(request(tools=[{"type": "web_search"}], tool_choice={"type": "web_search_preview"}))


def test_a_string_is_a_users_message():
    (item,) = read_input("hi")

    assert item.raw == {"type": "message", "role": "user", "content": "hi"}
    assert read_input(None) == []


def test_a_wrong_item_is_named_by_its_place():
    with pytest.raises(ApiError) as caught:
        read_input([{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "input_text"}]}])

    assert caught.value.param == "input[1].content[0].text"


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 100_000, b"{" + b" " * 100_000, b"\x00", b"nul"])
def test_bodies_that_are_no_json_are_refused_whatever_they_are(body: bytes):
    with pytest.raises(ApiError) as caught:
        decode(body, CreateResponse)

    assert caught.value.status == 400


def test_a_conversation_is_named_by_a_string_or_an_object():
    assert request(conversation="conv_1").conversation_id == "conv_1"
    assert request(conversation={"id": "conv_1"}).conversation_id == "conv_1"
