from __future__ import annotations

from typing import Any

import pytest

from antwort.api import items
from antwort.api.errors import ApiError
from antwort.api.items import AdditionalTools, Item
from antwort.api.requests import CreateResponse
from antwort.api.tools import FunctionTool, ToolSearchTool
from antwort.engine.declared.tools import DeclaredTool, declared_tools, has_secrets, merged_tools

MCP = {"type": "mcp", "server_label": "a", "server_url": "https://mcp.example", "authorization": "secret"}


def function(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, **fields}


def namespace(name: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "description": f"About {name}.", "tools": [*tools]}


def added(*tools: dict[str, Any]) -> Item:
    return items.read({"type": "additional_tools", "role": "developer", "tools": [*tools]})


def found(*tools: dict[str, Any]) -> Item:
    return items.read({"type": "tool_search_output", "call_id": "c", "tools": [*tools]})


def keys(declared: list[DeclaredTool]) -> list[str]:
    return [".".join(filter(None, (one.namespace and one.namespace.name, one.key[2]))) for one in declared]


def test_paths_are_those_of_the_declarations():
    request = CreateResponse(tools=[FunctionTool("a")], previous_response_id="resp_1")
    given = [items.read({"role": "user", "content": "hi"}), added(function("c"), namespace("n", function("d")))]
    declared = declared_tools(request, [added(function("b"))], given)

    assert keys(declared) == ["a", "b", "c", "n.d"]
    assert [one.param for one in declared] == [
        "tools[0]",
        "previous_response_id",
        "input[1].tools[0]",
        "input[1].tools[1].tools[0]",
    ]


def test_items_before_the_start_bring_nothing():
    assert keys(declared_tools(CreateResponse(), [], [added(function("a")), added(function("b"))], 1)) == ["b"]


def test_deferred_functions_wait_for_the_search_of_the_client():
    deferred = function("a", defer_loading=True)
    for search, expected in ((None, ["a"]), ("server", ["a", "tool_search"]), ("client", ["tool_search"])):
        tools: list[Any] = [] if search is None else [ToolSearchTool(search)]  # pyright: ignore[reportArgumentType] - from a list
        request = CreateResponse(tools=tools)
        assert sorted(keys(declared_tools(request, [], [added(deferred)]))) == expected
        assert "a" in keys(declared_tools(request, [], [added(deferred), found(deferred)]))


def test_more_tools_than_a_request_may_have_are_refused():
    items_of_100 = [added(*(function(f"f{item}_{at}") for at in range(100))) for item in range(21)]
    assert len(declared_tools(CreateResponse(), [], items_of_100[:20])) == 2000
    with pytest.raises(ApiError, match="declare 2100 tools; at most 2048") as caught:
        declared_tools(CreateResponse(), [], items_of_100)
    assert caught.value.code == "array_above_max_length"


def test_merged_tools_are_those_of_all_items_without_secrets():
    first = added(function("a"), namespace("n", function("x")), MCP)
    second = found(function("a", description="new", defer_loading=True), namespace("n", function("y")))
    merged = merged_tools([first, second])
    assert merged is not None
    assert isinstance(merged.known, AdditionalTools)
    assert str(merged.id).startswith("at_")

    tools = {tool["name"] if tool["type"] != "mcp" else "mcp": tool for tool in merged.raw["tools"]}
    assert sorted(tools) == ["a", "mcp", "n"]
    assert (tools["a"]["description"], tools["a"]["defer_loading"]) == ("new", None)
    assert [tool["name"] for tool in tools["n"]["tools"]] == ["x", "y"]
    assert tools["n"]["description"] == "About n."
    assert tools["mcp"]["authorization"] is None
    assert merged_tools([items.read({"role": "user", "content": "hi"})]) is None


def test_secrets_of_tools_in_items_are_noticed():
    assert has_secrets([added(function("a"), MCP)])
    assert not has_secrets([added(function("a"), {**MCP, "authorization": None})])
