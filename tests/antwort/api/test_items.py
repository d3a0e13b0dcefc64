from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api import items
from antwort.api.items import CodeInterpreterCall, GivenMessage, GivenText, Logs, Message, OutputText

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=6), json_values))
def test_an_item_of_an_unknown_type_is_unchanged(fields: dict[str, object]):
    raw = {**fields, "type": "unknown_type"}

    item = items.read(raw)
    assert (item.raw, item.known, item.type) == (raw, None, "unknown_type")


def test_unknown_fields_of_a_known_item_are_preserved():
    item = items.read({"type": "message", "role": "user", "content": "hi", "prompt_cache_breakpoint": True})

    assert item.known == GivenMessage("user", "hi")
    assert item.raw["prompt_cache_breakpoint"] is True


def test_type_is_optional_for_messages_and_references():
    assert items.read({"role": "user", "content": "hi"}).type == "message"
    assert items.read({"id": "msg_1"}).type == "item_reference"


@pytest.mark.parametrize(
    "item",
    [
        Message(id="msg_1", content=[OutputText("hi")], status="completed"),
        CodeInterpreterCall(id="ci_1", container_id="cntr_1", code="1", outputs=[Logs("1")], status="completed"),
        CodeInterpreterCall(id="ci_1", container_id="cntr_1", code=None, outputs=None, status="failed"),
    ],
)
def test_every_output_item_is_valid_input(item: items.OutputItem):
    assert items.read(msgspec.to_builtins(item)).known is not None


def test_unknown_annotations_of_an_input_text_are_accepted():
    part = {"type": "output_text", "text": "hi", "annotations": [{"type": "unknown_type"}], "logprobs": None}

    assert items.read({"role": "assistant", "content": [part]}).known == GivenMessage("assistant", [GivenText("hi")])


def test_the_json_of_a_message():
    assert msgspec.to_builtins(Message(id="msg_1")) == {
        "type": "message",
        "id": "msg_1",
        "content": [],
        "role": "assistant",
        "status": "in_progress",
    }


def test_a_known_type_with_invalid_fields_is_rejected():
    with pytest.raises(msgspec.ValidationError, match="content"):
        items.parse({"type": "message", "role": "user", "content": 3})


@pytest.mark.parametrize("kind, name", [(None, "null"), ([], "array"), ({}, "object")])
def test_the_error_for_a_type_that_is_no_string_has_the_name_of_json(kind, name):
    with pytest.raises(msgspec.ValidationError, match=f"got `{name}` - at `\\$.type`"):
        items.parse({"type": kind, "role": "user", "content": "x"})


@pytest.mark.parametrize(
    "raw",
    [
        {"type": "additional_tools", "tools": []},
        {"type": "tool_search_call", "id": "tsc_1"},
        {"type": "message", "content": "x"},
        {"type": None},
    ],
)
def test_a_stored_item_that_does_not_parse_is_kept(raw):
    assert items.read(raw) == items.Item(raw, None)
