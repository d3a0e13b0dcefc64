"""Approvals of MCP calls: those that a request cannot make run, and those of a replayed history."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from fixtures_mcp import mcp_server

ADD = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}, "strict": False}


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    with mcp_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def ask(env):
    with env.server.client() as client:

        def ask(text, tool=None, **more):
            request = {"model": "scripted", "input": text, "tools": [tool or env.tool()]}
            return client.responses.create(**{**request, **more})

        yield ask


def of(response, kind: str) -> list[dict]:
    return [item.to_dict() for item in response.output if item.type == kind]


def types(response) -> list[str]:
    return [item.type for item in response.output]


def request_of(response) -> dict:
    (item,) = of(response, "mcp_approval_request")
    return item


def answer(request: dict, *, approve: bool) -> dict:
    return {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve}


def fault(create, *arguments, **options) -> tuple[int, Any]:
    with pytest.raises(openai.APIStatusError) as caught:
        create(*arguments, **options)
    return caught.value.status_code, caught.value.body


@pytest.mark.parametrize("tools", [[], [ADD], [{"type": "mcp", "server_label": "erp", "server_url": "<url>"}]])
def test_an_approval_of_a_call_whose_server_is_not_declared_is_refused(env, ask, tools):
    first = ask("rename", env.tool(require_approval="always"))
    declared = [{**tool, "server_url": env.crm.url} if "server_url" in tool else tool for tool in tools]
    before = len(env.crm.calls)
    user = {"role": "user", "content": "Go on."}
    approval = answer(request_of(first), approve=True)
    status, error = fault(ask, [user, approval], tools=declared, previous_response_id=first.id)

    assert (status, error["param"]) == (400, "input[1]")
    assert "the MCP server 'crm', which is not declared" in error["message"]
    denied = ask([answer(request_of(first), approve=False)], tools=declared, previous_response_id=first.id)
    assert denied.output_text == "Not done: was denied by the user."
    status, error = fault(ask, [user, answer({"id": "mcpr_1"}, approve=False)], tools=declared)
    assert (status, error["message"]) == (400, "There is no approval request 'mcpr_1' in the history.")
    assert len(env.crm.calls) == before


def test_approved_calls_past_max_tool_calls_are_not_run(env, ask):
    tool = env.tool(require_approval="always")
    first = ask("three times", tool)
    approvals = [answer(request, approve=True) for request in of(first, "mcp_approval_request")]
    before = len(env.crm.calls)
    second = ask(approvals, tool, previous_response_id=first.id, max_tool_calls=2)

    assert len(approvals) == 3
    assert [one["output"] for one in of(second, "mcp_call")] == ["Ada Lovelace", "Grace Hopper"]
    assert len(env.crm.calls) == before + 2
    assert "No more tool calls are allowed" in second.output_text


def test_an_approved_call_past_max_tool_calls_is_not_run_by_a_later_request_either(env, ask):
    tool = env.tool(require_approval="always")
    first = ask("three times", tool, store=False)
    history = [{"role": "user", "content": "three times"}, *(item.to_dict() for item in first.output)]
    history += [answer(request, approve=True) for request in of(first, "mcp_approval_request")]
    second = ask(history, tool, store=False, max_tool_calls=2)
    history += [item.to_dict() for item in second.output]
    before = len(env.crm.calls)

    for tools in ([tool], []):
        third = ask([*history, {"role": "user", "content": "again"}], tools=tools, store=False)
        assert "mcp_call" not in types(third)
    assert len(env.crm.calls) == before


def test_an_approved_call_of_a_replayed_history_is_not_run_again(env, ask):
    tool = env.tool(require_approval="always")
    first = ask("rename", tool, store=False)
    approval = answer(request_of(first), approve=True)
    history = [{"role": "user", "content": "rename"}, *(item.to_dict() for item in first.output), approval]
    second = ask(history, tool, store=False)
    history += [item.to_dict() for item in second.output]
    before = len(env.crm.calls)

    for tools in ([tool], []):
        third = ask([*history, {"role": "user", "content": "again"}], tools=tools, store=False)
        assert types(third)[-1] == "message"
        assert "mcp_call" not in types(third)
    status, error = fault(ask, [*history, approval], tool, store=False)
    assert (status, error["message"]) == (400, f"Approval request '{request_of(first)['id']}' was answered already.")
    assert len(env.crm.calls) == before
