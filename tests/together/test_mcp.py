"""The hosted tool mcp, with the real server process, a real MCP server made with the SDK, and the real OpenAI SDK."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import openai
import pytest
from fake_mcp_servers import HostileMcpServer
from fixtures_mcp import CUSTOMER, SCRIPT, mcp_server
from fixtures_server import create_key, run_server
from stream_grammar import read_frames
from waiting import wait_until

from weakincentives.adapters.openai import McpConfig, OpenAIAdapter, OpenAIMcpSection
from weakincentives.adapters.openai.native_tools import McpApproval, McpCall, McpDecision
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, ToolContext
from weakincentives.runtime import Session, ToolInvoked

ADD = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}, "strict": False}
ECHO_KEYS = {
    "type",
    "server_label",
    "server_url",
    "server_description",
    "headers",
    "allowed_tools",
    "require_approval",
}


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    with mcp_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def client(env):
    with env.server.client() as sdk:
        yield sdk


@pytest.fixture
def ask(env, client):
    def ask(text, tool=None, **more):
        request = {"model": "scripted", "input": text, "tools": [tool or env.tool()]}
        return client.responses.create(**{**request, **more})

    return ask


def of(response, kind: str) -> list[dict]:
    return [item.to_dict() for item in response.output if item.type == kind]


def types(response) -> list[str]:
    return [item.type for item in response.output]


def fault(create, *arguments, **options) -> tuple[int, Any]:
    with pytest.raises(openai.APIStatusError) as caught:
        create(*arguments, **options)
    return caught.value.status_code, caught.value.body


def test_the_banner_says_which_servers_can_be_used(env):
    assert "mcp        servers by URL; none configured" in env.server.banner
    assert "tools      mcp" in env.server.banner


# ── lists and calls ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_tool_is_listed_and_called(env, ask):
    response = ask("customer 7")

    assert types(response) == ["mcp_list_tools", "mcp_call", "message"]
    (listed,), (called,) = of(response, "mcp_list_tools"), of(response, "mcp_call")
    assert set(listed) == {"id", "type", "server_label", "tools"}
    assert listed["tools"][0] == {
        "annotations": {"read_only": True},
        "description": "The name of the customer with this number.",
        "input_schema": {
            "properties": {"number": {"title": "Number", "type": "integer"}},
            "required": ["number"],
            "title": "customerArguments",
            "type": "object",
        },
        "name": "customer",
    }
    assert listed["tools"][1]["annotations"] == {"read_only": False}
    assert called == {
        "id": called["id"],
        "type": "mcp_call",
        "status": "completed",
        "approval_request_id": None,
        "arguments": '{"number":7}',
        "error": None,
        "name": "customer",
        "output": "Ada Lovelace",
        "server_label": "crm",
    }
    assert (listed["id"][:5], called["id"][:4]) == ("mcpl_", "mcp_")
    assert response.output_text == "I read: Ada Lovelace"
    assert env.crm.calls[-1] == ("customer", {"number": 7})


def test_the_declaration_is_echoed_without_credentials(env, ask, client):
    tool = env.tool(server_url=env.crm.private_url, authorization="hunter2", headers={"x-more": "hunter3"})
    response = ask("customer 7", tool)
    (echoed,) = response.to_dict()["tools"]

    assert set(echoed) == ECHO_KEYS | {"authorization"}
    assert (echoed["authorization"], echoed["headers"]) == (None, None)
    assert set(ask("customer 7").to_dict()["tools"][0]) == ECHO_KEYS
    assert {"authorization": "Bearer hunter2", "x-more": "hunter3"}.items() <= env.crm.headers[-1].items() or any(
        {"authorization": "Bearer hunter2", "x-more": "hunter3"}.items() <= one.items() for one in env.crm.headers
    )
    stored = client.responses.retrieve(response.id).to_json()
    assert "hunter" not in stored + response.to_json()
    assert "hunter" not in env.server.read_log()
    for file in env.server.directory.rglob("*"):
        assert not file.is_file() or file.name == "script.yaml" or b"hunter" not in file.read_bytes(), file


def test_the_events_are_those_of_openai(env, client):
    with env.server.http() as http:
        body = {"model": "scripted", "input": "customer 7", "tools": [env.tool()], "stream": True}
        events = read_frames(http.post("/v1/responses", json=body).content)
    kinds = [event["type"].removeprefix("response.") for event in events[2:11]]
    delta = events[8]

    assert kinds == [
        "output_item.added",
        "mcp_list_tools.in_progress",
        "mcp_list_tools.completed",
        "output_item.done",
        "output_item.added",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
        "mcp_call.completed",
    ]
    assert events[11]["type"] == "response.output_item.done"
    assert events[2]["item"] == {**events[5]["item"], "tools": []}
    assert events[6]["item"] == {**events[11]["item"], "arguments": "", "output": None, "status": "in_progress"}
    assert set(delta) == {"type", "sequence_number", "item_id", "output_index", "delta", "obfuscation"}
    assert set(events[9]) == {"type", "sequence_number", "item_id", "output_index", "arguments"}
    assert delta["delta"] == events[9]["arguments"] == '{"number":7}'
    assert all(event["output_index"] == 0 for event in events[2:6])
    assert all(event["output_index"] == 1 for event in events[6:12])


def test_the_sdk_parses_the_stream(env, client):
    with client.responses.stream(model="scripted", input="customer 7", tools=[env.tool()]) as stream:
        kinds = [type(event).__name__ for event in stream]
        response = stream.get_final_response()

    assert {
        "ResponseMcpListToolsInProgressEvent",
        "ResponseMcpListToolsCompletedEvent",
        "ResponseMcpCallInProgressEvent",
        "ResponseMcpCallArgumentsDeltaEvent",
        "ResponseMcpCallArgumentsDoneEvent",
        "ResponseMcpCallCompletedEvent",
    } <= set(kinds)
    assert types(response) == ["mcp_list_tools", "mcp_call", "message"]


def test_a_tool_that_fails(ask):
    response = ask("fail")
    (called,) = of(response, "mcp_call")

    assert (called["status"], called["output"]) == ("failed", None)
    assert called["error"]["type"] == "mcp_tool_execution_error"
    assert called["error"]["content"][0]["type"] == "text"
    assert response.status == "completed"
    assert response.output_text.startswith("I read: The tool failed: ")


def test_arguments_that_are_no_json_are_written_again(env, ask):
    before = len(env.crm.calls)
    response = ask("broken")

    assert types(response) == ["mcp_list_tools", "mcp_call", "message"]
    assert response.output_text == "I read at last: Ada Lovelace"
    assert len(env.crm.calls) == before + 1


def test_calls_of_one_reply_run_at_the_same_time_and_have_their_order(env, client):
    env.crm.release.clear()
    before = len(env.crm.calls)
    background = client.responses.create(model="scripted", input="two at once", tools=[env.tool()], background=True)
    wait_until(lambda: {name for name, _ in env.crm.calls[before:]} == {"wait", "customer"})
    env.crm.release.set()
    response = wait_until(lambda: (found := client.responses.retrieve(background.id)).status == "completed" and found)

    assert [(one["name"], one["output"]) for one in of(response, "mcp_call")] == [
        ("wait", "waited"),
        ("customer", "Grace Hopper"),
    ]


def test_max_tool_calls(ask):
    response = ask("three times", max_tool_calls=2)

    assert [one["output"] for one in of(response, "mcp_call")] == ["Ada Lovelace", "Grace Hopper"]


def test_a_function_of_the_client_beside_it(env, client):
    response = client.responses.create(model="scripted", input="both", tools=[env.tool(), ADD])

    assert types(response) == ["mcp_list_tools", "mcp_call", "function_call"]
    output = {"type": "function_call_output", "call_id": response.output[-1].call_id, "output": "1"}
    after = client.responses.create(
        model="scripted", input=[output], tools=[env.tool(), ADD], previous_response_id=response.id
    )
    assert after.output_text == "I read at last: 1"


def test_both_transports(env, ask):
    response = ask("customer 7", env.tool(server_url=env.crm.sse_url))

    assert of(response, "mcp_call")[0]["output"] == "Ada Lovelace"


# ── options of the declaration ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "allowed, expected",
    [
        (["customer", "unknown"], ["customer"]),
        ({"tool_names": ["rename", "customer"]}, ["customer", "rename"]),
        ({"read_only": True}, ["customer"]),
        ({"read_only": True, "tool_names": ["rename"]}, []),
        ([], []),
    ],
)
def test_allowed_tools(env, ask, allowed, expected):
    response = ask("hello", env.tool(allowed_tools=allowed))

    assert [tool["name"] for tool in of(response, "mcp_list_tools")[0]["tools"]] == expected
    assert response.to_dict()["tools"][0]["allowed_tools"] == allowed


def test_a_tool_that_is_not_allowed_is_not_called(env, ask):
    before = len(env.crm.calls)
    response = ask("rename", env.tool(allowed_tools=["customer"]))

    assert types(response) == ["mcp_list_tools", "message"]
    assert response.output_text == "I read: There is no tool 'crm__rename'."
    assert len(env.crm.calls) == before


@pytest.mark.parametrize(
    "choice, called",
    [
        ({"type": "mcp", "server_label": "crm", "name": "customer"}, True),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "crm"}]}, True),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "mcp", "server_label": "crm", "name": "rename"}],
            },
            False,
        ),
        ("none", False),
    ],
)
def test_tool_choice(ask, choice, called):
    response = ask("customer 7", tool_choice=choice)

    assert (len(of(response, "mcp_call")) == 1) is called


@pytest.mark.parametrize(
    "choice, message",
    [
        ({"type": "mcp", "server_label": "crm", "name": "nothing"}, "Tool choice 'nothing' not found"),
        ({"type": "mcp", "server_label": "other"}, "Tool choice 'other' not found in 'tools' parameter."),
    ],
)
def test_a_tool_choice_that_does_not_exist(ask, choice, message):
    status, error = fault(ask, "customer 7", tool_choice=choice)

    assert (status, error["param"]) == (400, "tool_choice")
    assert error["message"].startswith(message)


def test_names_do_not_collide_with_those_of_other_tools(env, ask, client):
    function = {**ADD, "name": CUSTOMER}
    other = env.tool(server_label="other")
    tools = [env.tool(), other, function]
    response = client.responses.create(model="scripted", input="customer 7", tools=tools)

    (called,) = of(response, "function_call")
    assert called["name"] == CUSTOMER
    assert types(response) == ["mcp_list_tools", "mcp_list_tools", "function_call"]


INVALID = [
    ({"connector_id": "connector_gmail"}, "connector_id"),
    ({"tunnel_id": "x"}, "tunnel_id"),
    ({"server_url": "ftp://x.example/"}, "server_url"),
    ({"server_url": "http://user:hunter2@x.example/"}, "server_url"),
    ({"server_url": None}, "server_url"),
    ({"server_label": "a b"}, "server_label"),
    ({"headers": {"host": "x"}}, "headers"),
    ({"headers": {"a b": "x"}}, "headers"),
    ({"headers": {"a": "x\r\ny: z"}}, "headers"),
    ({"authorization": "x\r\ny: z"}, "authorization"),
    ({"authorization": "x", "headers": {"Authorization": "y"}}, "authorization"),
    ({"require_approval": "sometimes"}, "require_approval"),
    ({"require_approval": {"never": {"names": []}}}, "require_approval"),
    ({"allowed_tools": {"names": []}}, "allowed_tools"),
    ({"secret": "hunter2"}, "secret"),
]


@pytest.mark.parametrize("options, field", INVALID, ids=[str(options)[:40] for options, _ in INVALID])
def test_an_invalid_declaration_is_refused_by_the_name_of_its_field(env, ask, options, field):
    status, error = fault(ask, "hello", env.tool(**options))

    assert status == 400
    assert error["param"].startswith(f"tools[0].{field}"), error
    assert "hunter2" not in error["message"]


# ── failures of a list ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_server_that_does_not_list_its_tools_fails_the_request(env, ask):
    tool = env.tool(server_url=env.crm.private_url, authorization="wrong-hunter2")
    for more in ({}, {"stream": True}):
        status, error = fault(ask, "customer 7", tool, **more)
        assert status == 424
        assert error == {
            "message": "Error retrieving tool list from MCP server: 'crm'. Http status code: 401 (Unauthorized)",
            "type": "external_connector_error",
            "param": "tools[0]",
            "code": "http_error",
        }


def test_private_addresses_are_refused_and_loopback_too_on_a_server_with_keys(env, ask, tmp_path):
    status, error = fault(ask, "hello", env.tool(server_url="http://169.254.169.254/mcp"))
    assert (status, error["code"]) == (424, "http_error")
    assert "169.254.169.254 is not on the public internet" in error["message"]

    providers = {"code_interpreter": {"enabled": False}, "mcp": {"enabled": True}}
    key = create_key(tmp_path, "us")
    config = {"providers": providers, "auth": {"keys_file": "keys.json"}}
    with run_server(tmp_path, config) as server, server.client(key) as client:
        before = len(env.crm.headers)
        status, error = fault(client.responses.create, model="scripted", input="hello", tools=[env.tool()])
        assert status == 424
        assert "127.0.0.1 is not on the public internet" in error["message"]
        assert len(env.crm.headers) == before


# ── approvals ────────────────────────────────────────────────────────────────────────────────────────────────────────


def request_of(response) -> dict:
    (item,) = of(response, "mcp_approval_request")
    return item


def answer(request: dict, *, approve: bool, **more) -> dict:
    return {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve, **more}


def test_a_call_that_needs_an_approval_waits_for_it(env, ask):
    before = len(env.crm.calls)
    tool = env.tool(require_approval="always")
    first = ask("rename", tool)

    assert types(first) == ["mcp_list_tools", "mcp_approval_request"]
    request = request_of(first)
    assert request == {
        "id": request["id"],
        "type": "mcp_approval_request",
        "arguments": '{"number":7,"name":"Ada King"}',
        "name": "rename",
        "server_label": "crm",
    }
    assert len(env.crm.calls) == before
    second = ask([answer(request, approve=True)], tool, previous_response_id=first.id)
    assert types(second) == ["mcp_list_tools", "mcp_call", "message"]
    (called,) = of(second, "mcp_call")
    assert (called["approval_request_id"], called["status"]) == (request["id"], "completed")
    assert called["output"] == "7 is called Ada King now"
    assert second.output_text == "Done: 7 is called Ada King now"
    assert env.crm.calls[before:] == [("rename", {"number": 7, "name": "Ada King"})]


def test_an_approved_call_reports_twice_that_it_is_in_progress(env, ask):
    tool = env.tool(require_approval="always")
    first = ask("rename", tool)
    events = ask([answer(request_of(first), approve=True)], tool, previous_response_id=first.id, stream=True)
    kinds = [event.type.removeprefix("response.") for event in events if getattr(event, "output_index", 0) == 1]

    assert (
        kinds[:8]
        == [
            "output_item.added",
            "mcp_call.in_progress",
            "mcp_call_arguments.delta",
            "mcp_call.in_progress",
            "mcp_call_arguments.done",
            "mcp_call.completed",
            "output_item.done",
        ][:8]
    )


def test_a_denied_call_is_not_run_and_the_model_reads_why(env, ask):
    before = len(env.crm.calls)
    tool = env.tool(require_approval="always")
    first = ask("rename", tool)
    request = request_of(first)
    denied = ask([answer(request, approve=False, reason="wrong name")], tool, previous_response_id=first.id)

    assert types(denied) == ["mcp_list_tools", "message"]
    assert denied.output_text == "Not done: was denied by the user: wrong name"
    assert len(env.crm.calls) == before


def test_an_approval_in_a_replayed_history(env, ask):
    tool = env.tool(require_approval="always")
    first = ask("rename", tool, store=False)
    history = [{"role": "user", "content": "rename"}, *(item.to_dict() for item in first.output)]
    second = ask([*history, answer(request_of(first), approve=True)], tool, store=False)

    assert of(second, "mcp_call")[0]["output"] == "7 is called Ada King now"


def test_an_approval_is_valid_once_and_for_these_arguments_only(env, ask):
    tool = env.tool(require_approval="always")
    first = ask("rename", tool)
    request = request_of(first)
    approval = answer(request, approve=True)
    second = ask([approval], tool, previous_response_id=first.id)
    before = len(env.crm.calls)

    status, error = fault(ask, [approval], tool, previous_response_id=second.id)
    assert (status, error["message"]) == (400, f"Approval request '{request['id']}' was answered already.")
    user = {"role": "user", "content": "rename"}
    changed = {**request, "arguments": '{"number":1,"name":"Eve"}'}
    status, error = fault(ask, [user, changed, approval], tool)
    assert (status, error["param"]) == (400, "input")
    assert "was not made by this server for this call" in error["message"]
    forged = {**request, "id": "mcpr_" + "0" * 56}
    assert fault(ask, [user, forged, answer(forged, approve=True)], tool)[0] == 400
    status, error = fault(ask, [user, answer({"id": "mcpr_1"}, approve=True)], tool)
    assert (status, error["message"]) == (400, "There is no approval request 'mcpr_1' in the history.")
    assert len(env.crm.calls) == before


@pytest.mark.parametrize(
    "require, asked",
    [
        (None, True),
        ("always", True),
        ("never", False),
        ({"never": {"tool_names": ["customer"]}}, False),
        ({"never": {"tool_names": ["rename"]}}, True),
        ({"never": {"read_only": True}}, False),
        ({"never": {"read_only": False}}, True),
        ({"always": {"tool_names": ["customer"]}, "never": {"read_only": True}}, True),
        ({"always": {"tool_names": ["rename"]}}, True),
        ({"never": {}}, True),
        ({}, True),
    ],
)
def test_require_approval(env, ask, require, asked):
    tool = {**env.tool(), "require_approval": require}
    response = ask("customer 7", tool)

    assert (types(response)[1] == "mcp_approval_request") is asked
    assert response.to_dict()["tools"][0]["require_approval"] == require


def test_an_approval_beside_a_function_of_the_client(env, ask, client):
    tools = [env.tool(require_approval="always"), ADD]
    response = client.responses.create(model="scripted", input="approve or add", tools=tools)

    assert types(response) == ["mcp_list_tools", "mcp_approval_request", "function_call"]


# ── history ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_chained_response_reads_the_calls_before_it(ask, client):
    first = ask("customer 7")
    second = ask("again", previous_response_id=first.id)

    assert second.output_text == "As before: Ada Lovelace"
    assert types(second) == ["mcp_list_tools", "message"]
    third = client.responses.create(model="scripted", input="again", previous_response_id=second.id)
    assert types(third) == ["message"]


def test_a_replayed_history_is_read(ask):
    first = ask("customer 7", store=False)
    replayed = [{"role": "user", "content": "customer 7"}, *(item.to_dict() for item in first.output)]
    second = ask([*replayed, {"role": "user", "content": "again"}], store=False)

    assert second.output_text == "As before: Ada Lovelace"


def test_a_server_of_the_stored_history_that_cannot_be_listed_fails_no_request(env, client):
    secret = {"server_url": env.crm.private_url, "authorization": "hunter2"}
    added = {"type": "additional_tools", "role": "developer", "tools": [env.tool(**secret)]}
    user = {"role": "user", "content": "customer 7"}
    first = client.responses.create(model="scripted", input=[added, user])
    assert types(first) == ["mcp_list_tools", "mcp_call", "message"]
    second = client.responses.create(model="scripted", input="hello", previous_response_id=first.id)
    (listed,) = of(second, "mcp_list_tools")
    assert (listed["tools"], types(second)) == ([], ["mcp_list_tools", "message"])
    assert listed["error"].endswith("Http status code: 401 (Unauthorized)")
    again = {"model": "scripted", "input": "customer 7", "tools": [env.tool(**secret)]}
    third = client.responses.create(**again, previous_response_id=first.id)
    assert types(third) == ["mcp_list_tools", "mcp_call", "message"]


def test_deferred_tools_are_offered_when_a_tool_search_has_found_them(env, client):
    tools = [env.tool(defer_loading=True), {"type": "tool_search", "execution": "client", "description": "Search."}]
    first = client.responses.create(model="scripted", input="customer 7", tools=tools)
    assert types(first) == ["message"]
    assert first.output_text == "I read: There is no tool 'crm__customer'."
    found = {"type": "mcp", "server_label": "crm"}
    search = [
        {"type": "tool_search_call", "call_id": "c1", "arguments": {"q": "crm"}, "execution": "client"},
        {"type": "tool_search_output", "call_id": "c1", "execution": "client", "tools": [found]},
    ]
    user = {"role": "user", "content": "customer 7"}
    second = client.responses.create(model="scripted", input=[*search, user], tools=tools)
    assert types(second) == ["mcp_list_tools", "mcp_call", "message"]


# ── the client library ───────────────────────────────────────────────────────────────────────────────────────────────


def test_the_section_of_the_client_library_approves_calls(env, client):
    asked: list[McpApproval] = []

    def approve(request: McpApproval, context: ToolContext) -> McpDecision:
        asked.append(request)
        return McpDecision(approve=len(asked) == 1, reason="once is enough")

    config = McpConfig(server_label="crm", server_url=env.crm.url, authorization="hunter2", approve=approve)
    section = OpenAIMcpSection(default_params=config)
    task = MarkdownSection(title="Task", key="task", template="rename")
    prompt = Prompt(PromptTemplate(ns="mcp", key="rename", sections=[task, section]))
    session = Session()
    before = len(env.crm.calls)
    with OpenAIAdapter(model="scripted", client=client) as adapter:
        first = adapter.evaluate(prompt, session=session)
        second = adapter.evaluate(prompt, session=session)

    assert first.text == "Done: 7 is called Ada King now"
    assert second.text == "Not done: was denied by the user: once is enough"
    assert asked == [McpApproval("crm", "rename", '{"number":7,"name":"Ada King"}')] * 2
    assert len(env.crm.calls) == before + 1
    made = [event for event in session[ToolInvoked].all() if event.origin == "provider"]
    assert [(event.params, event.success) for event in made] == [
        (McpCall("crm", "rename", '{"number":7,"name":"Ada King"}'), True)
    ]


# ── several requests and servers ─────────────────────────────────────────────────────────────────────────────────────


def test_tools_that_are_left_out_are_named(env, ask):
    with HostileMcpServer().running() as hostile:
        schema = {"type": "object", "properties": {}}
        hostile.tools = [{"name": name, "inputSchema": schema} for name in ("good", "not good", "code_interpreter")]
        response = ask("hello", env.tool(server_url=f"{hostile.url}/x"))
    (listed,) = of(response, "mcp_list_tools")

    assert [tool["name"] for tool in listed["tools"]] == ["good", "code_interpreter"]
    assert listed["antwort:left_out"].startswith("Left out: 'not good' (the name")


def test_the_tools_of_all_servers_of_a_request_have_a_limit(env, ask):
    schema = {"type": "object", "properties": {"a": {"type": "string", "description": "x" * 60_000}}}
    with HostileMcpServer().running() as hostile:
        hostile.tools = [{"name": f"t{at}", "inputSchema": schema} for at in range(16)]
        tools = [env.tool(server_label=f"l{at}", server_url=f"{hostile.url}/{at}") for at in range(5)]
        status, error = fault(ask, "hello", tools=tools)
        fewer = [{**tool, "allowed_tools": ["t1"]} for tool in tools]
        response = ask("hello", tools=fewer)

    assert (status, error["param"]) == (400, "tools[4].allowed_tools")
    assert "more than 4194304 bytes" in error["message"]
    assert types(response) == ["mcp_list_tools"] * 5 + ["message"]


def test_a_server_that_hangs_does_not_hold_up_others(env, client):
    with HostileMcpServer().running() as hostile:
        silent = env.tool(server_url=f"{hostile.url}/silent", server_label="silent")
        waiting = client.responses.create(model="scripted", input="customer 7", tools=[env.tool()], background=True)
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=1.0).responses.create(model="scripted", input="hello", tools=[silent])
        done = wait_until(lambda: (found := client.responses.retrieve(waiting.id)).status == "completed" and found)

    assert done.output_text == "I read: Ada Lovelace"


def test_a_background_response_with_credentials_is_not_continued_after_a_crash(tmp_path):
    with mcp_server(tmp_path) as env:
        secret = env.tool(authorization="hunter2")
        with env.server.client() as client:
            create = client.responses.create
            lost, kept = (
                create(model="scripted", input="two at once", tools=[tool], background=True)
                for tool in (secret, env.tool())
            )
            wait_until(lambda: [name for name, _ in env.crm.calls].count("wait") == 2)
        env.server.kill()
        env.crm.release.set()
        env.server.start()
        with env.server.client() as client:
            failed = wait_until(lambda: (one := client.responses.retrieve(lost.id)).status != "in_progress" and one)
            done = wait_until(lambda: (one := client.responses.retrieve(kept.id)).status == "completed" and one)

    assert failed.status == "failed"
    assert "secrets" in failed.error.message
    assert [item.type for item in done.output].count("mcp_list_tools") == 1
    assert b"hunter2" not in b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


def test_metrics(env, ask):
    ask("customer 7")
    with env.server.http() as http:
        metrics = http.get("/metrics").text

    assert 'antwort_mcp_calls_total{outcome="completed"}' in metrics
    assert "antwort_mcp_call_seconds_count" in metrics
    assert "crm" not in metrics


def test_tenants_share_nothing(env, tmp_path):
    keys = {tenant: create_key(tmp_path, tenant, "--tenant", tenant) for tenant in ("one", "two")}
    providers = {
        "code_interpreter": {"enabled": False},
        "mcp": {"enabled": True, "allow_networks": ["127.0.0.1/32"]},
    }
    config = {"providers": providers, "auth": {"keys_file": "keys.json"}}
    with run_server(tmp_path, config, script=SCRIPT) as server:
        one, two = (server.client(keys[tenant]) for tenant in ("one", "two"))
        tool = env.tool(require_approval="always")
        asked = one.responses.create(model="scripted", input="rename", tools=[tool], store=False)
        request = request_of(asked)
        history = [{"role": "user", "content": "rename"}, request, answer(request, approve=True)]
        status, error = fault(two.responses.create, model="scripted", input=history, tools=[tool])

        assert status == 400
        assert "was not made by this server for this call" in error["message"]
        done = one.responses.create(model="scripted", input=history, tools=[tool])
        assert of(done, "mcp_call")[0]["status"] == "completed"


def test_a_key_error_in_json_is_not_raised(env):
    """Items of any shape in the history are no failure of the server."""
    with env.server.http() as http:
        odd = [
            {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "crm", "name": "x", "arguments": "{"},
            {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
        ]
        body = {"model": "scripted", "input": odd, "tools": [env.tool()]}
        answered: httpx2.Response = http.post("/v1/responses", json=body)

    assert answered.status_code == 400
    assert json.loads(answered.content)["error"]["param"] == "input"
