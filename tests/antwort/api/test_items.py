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
def test_an_item_of_a_type_that_nobody_knows_is_kept_to_the_letter(fields: dict[str, object]):
    raw = {**fields, "type": "from_the_future"}

    read = items.read(raw)
    assert (read.raw, read.known, read.type) == (raw, None, "from_the_future")


def test_fields_that_nobody_knows_stay_with_an_item_that_is_known():
    read = items.read({"type": "message", "role": "user", "content": "hi", "prompt_cache_breakpoint": True})

    assert read.known == GivenMessage("user", "hi")
    assert read.raw["prompt_cache_breakpoint"] is True


def test_types_may_be_left_out_where_the_wire_allows_it():
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
def test_every_output_item_is_accepted_as_input_nulls_included(item: items.OutputItem):
    assert items.read(msgspec.to_builtins(item)).known is not None


def test_what_another_server_wrote_on_a_text_is_no_reason_to_refuse_it():
    part = {"type": "output_text", "text": "hi", "annotations": [{"type": "from_the_future"}], "logprobs": None}

    assert items.read({"role": "assistant", "content": [part]}).known == GivenMessage("assistant", [GivenText("hi")])


def test_what_a_message_looks_like_on_the_wire():
    assert msgspec.to_builtins(Message(id="msg_1")) == {
        "type": "message",
        "id": "msg_1",
        "content": [],
        "role": "assistant",
        "status": "in_progress",
    }


def test_a_known_type_with_wrong_fields_is_refused():
    with pytest.raises(msgspec.ValidationError, match="content"):
        items.read({"type": "message", "role": "user", "content": 3})
