from __future__ import annotations

import pytest

from antwort.api import items
from antwort.api.errors import ApiError
from antwort.api.ids import ITEM_PREFIXES, new_item_id
from antwort.api.validation.ids import check_call_id, check_each_once, check_id, check_item_ids, item_id_prefix


@pytest.mark.parametrize("kind", ITEM_PREFIXES)
def test_the_ids_of_this_server_are_valid(kind):
    check_item_ids({"id": new_item_id(kind), "call_id": new_item_id("message")}, kind, "input[0]")
    check_item_ids({"id": None, "call_id": None}, kind, "input[0]")


@pytest.mark.parametrize("kind", items.READERS)
def test_every_item_type_has_a_prefix_or_none_is_needed(kind):
    assert kind in ITEM_PREFIXES or kind in ("item_reference", "local_shell_call_output")


def test_an_id_has_a_prefix_without_its_underscore():
    assert (item_id_prefix("message"), item_id_prefix("compaction"), item_id_prefix("bogus")) == ("msg", "", "")
    check_id("msg-1", "id", "msg")
    check_id("ctco_1", "id", item_id_prefix("custom_tool_call_output"))


@pytest.mark.parametrize(
    "value, code",
    [
        ("rs_1", "invalid_value"),
        ("", "empty_string"),
        ("msg_1\n", "invalid_value"),
        ("msg_ü", "invalid_value"),
        ("msg_" + "x" * 61, "string_above_max_length"),
    ],
)
def test_a_malformed_id_is_named(value, code):
    with pytest.raises(ApiError) as caught:
        check_id(value, "input[3].id", "msg")

    assert (caught.value.status, caught.value.code, caught.value.param) == (400, code, "input[3].id")
    assert len(caught.value.message) < 300


def test_a_call_id_may_have_any_characters():
    check_call_id("functions.look:0", "call_id")
    for value, code in (("", "empty_string"), ("c" * 65, "string_above_max_length")):
        with pytest.raises(ApiError) as caught:
            check_call_id(value, "call_id")
        assert caught.value.code == code


def test_a_local_shell_output_has_the_id_of_its_call():
    call = items.read({"type": "local_shell_call", "id": "lsh_1", "call_id": "c", "action": {}})
    output = items.read({"type": "local_shell_call_output", "id": "lsh_1", "output": "x"})

    check_each_once([call, output], "input")
    with pytest.raises(ApiError, match="Duplicate item found with id lsh_1"):
        check_each_once([call, output, call], "input")
