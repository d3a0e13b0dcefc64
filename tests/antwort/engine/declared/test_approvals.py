from __future__ import annotations

from typing import Any

import pytest

from antwort.api import items
from antwort.api.errors import ApiError
from antwort.api.items import Item
from antwort.api.requests import CreateResponse
from antwort.api.tools import McpTool
from antwort.engine.declared.approvals import check_approvals, open_approvals
from antwort.engine.declared.tools import DeclaredTool, declared_tools


def request(identifier: str, label: str = "crm") -> Item:
    return items.read(
        {"type": "mcp_approval_request", "id": identifier, "server_label": label, "name": "n", "arguments": "{}"}
    )


def answer(identifier: str, *, approve: bool = True) -> Item:
    return items.read({"type": "mcp_approval_response", "approval_request_id": identifier, "approve": approve})


def call(identifier: str | None) -> Item:
    fields: dict[str, Any] = {"server_label": "crm", "name": "n", "arguments": "{}", "approval_request_id": identifier}
    return items.read({"type": "mcp_call", "id": "mcp_1", **fields})


def tools(*labels: str) -> list[DeclaredTool]:
    return declared_tools(CreateResponse(tools=[McpTool(label) for label in labels]), [], [])


def test_an_approval_before_an_approved_call_is_not_open():
    """Also if its own call was not run, as past `max_tool_calls`."""
    given = [answer("a"), answer("b"), call("a"), answer("c"), call(None), answer("d")]

    assert [at for at, _ in open_approvals(given)] == [3, 5]


def test_a_call_without_the_id_of_its_request_ends_the_approval_of_the_same_call():
    given = [request("a"), request("b", "erp"), request("c"), answer("a"), answer("b"), answer("c"), call(None)]

    assert [at for at, _ in open_approvals(given)] == [3, 4]


def test_the_item_and_the_server_are_named():
    given = [request("a"), answer("a")]
    check_approvals(given, given, tools("crm"))

    with pytest.raises(ApiError) as caught:
        check_approvals(given, given, tools("erp"), 3)
    assert caught.value.param == "input[4]"
    assert "the MCP server 'crm'" in caught.value.message


def test_a_denied_call_needs_no_server():
    given = [request("a"), answer("a", approve=False)]
    check_approvals(given, given, [])


def test_a_replayed_history_needs_no_server():
    given = [request("a"), answer("a"), call("a")]
    check_approvals(given, given, [])
    check_approvals([], given[1:], [])


@pytest.mark.parametrize("approve", [True, False])
def test_an_answer_without_a_request_is_refused(approve):
    given = [answer("a", approve=approve)]
    with pytest.raises(ApiError, match="There is no approval request 'a' in the history"):
        check_approvals(given, given, tools("crm"))
