from __future__ import annotations

import re

import pytest

from antwort.api import items
from antwort.engine.declared.names import ToolNames, mcp_function_name


def test_a_name_without_a_namespace_stays():
    assert [ToolNames().name(none, "get") for none in (None, "")] == ["get", "get"]


def test_a_namespace_is_a_prefix_and_names_are_stable():
    names = ToolNames()
    assert [names.name("crm", "get"), names.name("crm", "get")] == ["crm__get"] * 2


@pytest.mark.parametrize(
    "taken, pairs",
    [
        (["crm__get"], [("crm", "get")]),
        ([], [("a", "b__c"), ("a__b", "c")]),
        ([], [("n" * 128, "x"), ("n" * 128, "y")]),
        ([ToolNames(["crm__get"]).name("crm", "get"), "crm__get"], [("crm", "get")]),
    ],
    ids=["a plain function", "two namespaces", "long names", "a plain function with the digest"],
)
def test_names_that_collide_or_are_too_long_end_with_a_digest(taken, pairs):
    names = ToolNames(taken)
    found = [names.name(*pair) for pair in pairs]

    assert len({*taken, *found}) == len(taken) + len(found)
    assert all(len(name) <= 64 for name in found)
    assert found == [names.name(*pair) for pair in pairs]


def for_model(raw):
    return ToolNames(["crm__get"]).for_model(items.read(raw)).raw


def test_calls_of_the_history_have_the_name_that_the_model_knows():
    flat = ToolNames(["crm__get"]).name("crm", "get")
    call = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "get", "arguments": "{}"}
    custom = {"type": "custom_tool_call", "call_id": "c", "name": "get", "input": "x"}

    assert for_model({**call, "namespace": "crm"}) == {**call, "name": flat}
    assert for_model({**custom, "namespace": "crm"}) == {**custom, "name": flat}
    for raw in (call, custom, {**call, "namespace": None}, {"role": "user", "content": "hi"}):
        assert for_model(raw) is raw


def test_outputs_have_no_namespace():
    output = {"type": "function_call_output", "call_id": "c", "output": "1"}
    assert for_model({**output, "name": "get", "namespace": "crm"}) == output


def test_a_tool_search_of_the_client_is_a_function_call_and_its_output_names_the_tools():
    search = {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {"query": "ä"}}
    assert for_model(search) == {
        "type": "function_call",
        "call_id": "c",
        "name": "tool_search",
        "arguments": '{"query":"ä"}',
    }
    get = {"type": "function", "name": "find"}
    found = [get, {"type": "namespace", "name": "hr", "description": "", "tools": [get]}]
    text = "These tools can be called from now on: find, hr__find."
    for tools, output in ((found, text), ([], "No tools were found.")):
        read = for_model({"type": "tool_search_output", "call_id": "c", "tools": tools})
        assert read == {"type": "function_call_output", "call_id": "c", "output": output}


def test_a_tool_search_of_a_server_stays():
    for raw in (
        {"type": "tool_search_call", "call_id": None, "execution": "server", "arguments": {}},
        {"type": "tool_search_output", "call_id": None, "execution": "server", "tools": []},
    ):
        assert for_model(raw) is raw


def test_tools_of_mcp_servers_have_the_label_in_their_names():
    assert mcp_function_name("crm", "get") == "crm__get"


@pytest.mark.parametrize(
    "label, name, taken",
    [
        ("crm", "get", {"crm__get"}),
        ("a__b", "c", set()),
        ("a", "b__c", set()),
        ("crm", "get.all", set()),
        ("crm", "get/../x", set()),
        ("crm", "x" * 128, set()),
    ],
)
def test_a_name_that_would_not_be_unique_or_no_function_name_ends_with_a_digest(label, name, taken):
    found = mcp_function_name(label, name, taken)

    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,55}_[0-9a-f]{8}", found)
    assert found == mcp_function_name(label, name, taken)
    assert mcp_function_name(label, name, {*taken, found}) not in {*taken, found}


def test_two_tools_of_mcp_servers_never_have_the_same_name():
    pairs = [("a", "b__c"), ("a__b", "c"), ("a", "b.c"), ("a", "b/c"), ("a", "b_c"), ("a_b", "c"), ("a", "b_-c")]
    pairs += [("a", "_b"), ("a_", "b"), ("a__", "b"), ("a_", "_b"), ("a", "__b")]

    assert len({mcp_function_name(*pair) for pair in pairs}) == len(pairs)
