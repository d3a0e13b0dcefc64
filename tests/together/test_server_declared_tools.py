"""Declared tools through the server process: namespaces, additional tools, tool search, tools that the server lacks.

The requests that the upstream receives show what a model is offered; the SDK shows what the client gets.
"""

from __future__ import annotations

import json
import re
import socket
import sqlite3
from contextlib import closing
from urllib.parse import urlsplit

import openai
import pytest
from fake_upstream import running_upstream
from fixtures_server import run_server

from antwort.testing.model import AnswerCall, ModelAnswer

HELLO = ModelAnswer(text="Hello.")
OBJECT = {"type": "object", "properties": {}}


def function(name: str, **fields) -> dict:
    return {"type": "function", "name": name, "parameters": OBJECT, "strict": False, **fields}


def namespace(name: str, *tools: dict, description: str = "") -> dict:
    return {"type": "namespace", "name": name, "description": description, "tools": [*tools]}


CRM = namespace(
    "crm", function("get", description="Get one."), {"type": "custom", "name": "note"}, description="Sales."
)
SEARCH = {"type": "tool_search", "execution": "client", "description": "Find tools.", "parameters": OBJECT}
WEB_SEARCH = {"type": "web_search", "external_web_access": False, "search_content_types": ["text", "image"]}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}


@pytest.fixture(scope="module")
def upstream():
    with running_upstream() as running:
        yield running


def models(upstream) -> dict:
    return {
        "default": "chat",
        "default_for_unknown": True,
        "chat": {"kind": "chat_completions", "base_url": upstream.url, "tokenizer": "estimate"},
        "responses": {"kind": "responses", "base_url": upstream.url, "compaction": "server"},
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory, upstream):
    with run_server(tmp_path_factory.mktemp("server"), {"models": models(upstream)}) as running:
        yield running


@pytest.fixture(scope="module")
def ignoring_server(tmp_path_factory, upstream):
    config = {"models": models(upstream), "tools": {"unavailable": "ignore"}}
    with run_server(tmp_path_factory.mktemp("ignoring"), config) as running:
        yield running


@pytest.fixture
def client(server, upstream):
    upstream.reset()
    upstream.set_replies(upstream.chat(HELLO))
    with server.client() as client:
        yield client


@pytest.fixture
def ignoring(ignoring_server, upstream):
    upstream.reset()
    upstream.set_replies(upstream.chat(HELLO))
    with ignoring_server.client() as client:
        yield client


def call(name: str, arguments: dict | None = None) -> AnswerCall:
    """A call of the model. The upstream numbers the ids of its calls from `call_0`."""
    return AnswerCall(name, json.dumps(arguments or {}))


def reply_with_calls(upstream, *calls: AnswerCall) -> None:
    upstream.set_replies(upstream.chat(ModelAnswer(calls=calls, reason="calls")), upstream.chat(HELLO))


def offered(upstream) -> list[str]:
    """The functions of the last request to the upstream."""
    return [tool["function"]["name"] for tool in upstream.requests[-1].body.get("tools", [])]


# ── what Codex sends ─────────────────────────────────────────────────────────────────────────────────────────────────

CODEX_BODY = {
    "model": "gpt-6.1-sol",
    "stream": True,
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "low", "context": "all_turns"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a1ee7f-b8ba-78a1-9c26-bf054c6f0f3b",
    "service_tier": "priority",
    "text": {"verbosity": "low"},
    "client_metadata": {"x-codex-window-id": "01a1ee7f:0", "x-codex-turn-metadata": "{}"},
}
EXEC = {"type": "custom", "name": "exec", "description": "Run JavaScript.", "format": GRAMMAR}
NEW_MODEL = {
    "input": [
        {
            "type": "additional_tools",
            "id": "at_01a1ee7f-b8e0-7011-9ee2-7323405b0d19",
            "role": "developer",
            "tools": [
                namespace("functions", EXEC, function("wait")),
                namespace("collaboration", function("list_agents"), description="Sub-agents."),
            ],
        },
        {**USER, "id": "msg_01a1ee7f-b8e8-79a1-a0cf-12a8f9204901", "internal_chat_message_metadata_passthrough": {}},
    ]
}
OLD_MODEL = {
    "tools": [
        function("exec_command"),
        {"type": "custom", "name": "apply_patch", "description": "Edit files.", "format": GRAMMAR},
        namespace("multi_agent_v1", function("spawn_agent")),
        SEARCH,
        WEB_SEARCH,
    ],
    "input": [USER],
}


@pytest.mark.parametrize(
    "fields, names",
    [
        (NEW_MODEL, ["functions__exec", "functions__wait", "collaboration__list_agents"]),
        (OLD_MODEL, ["exec_command", "apply_patch", "multi_agent_v1__spawn_agent", "tool_search"]),
    ],
    ids=["tools in the input", "tools as a parameter"],
)
def test_a_request_of_codex_is_answered(ignoring, ignoring_server, upstream, fields, names):
    with ignoring_server.http() as http, http.stream("POST", "/v1/responses", json=CODEX_BODY | fields) as answer:
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]

    assert (answer.status_code, events[-1]["type"]) == (200, "response.completed")
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "Hello."
    assert offered(upstream) == names


@pytest.mark.parametrize("path", ["responses", "responses/input_tokens", "responses/compact"])
def test_client_metadata_is_taken_and_ignored(client, server, upstream, path):
    with server.http() as http:
        answer = http.post(f"/v1/{path}", json={"input": "hi", "client_metadata": {"turn": "1"}})

    assert answer.status_code == 200, answer.text
    assert "client_metadata" not in answer.json()
    assert all("client_metadata" not in request.body for request in upstream.requests)


def test_the_model_list_of_codex_is_answered(server):
    with server.http() as http:
        assert http.get("/v1/models", params={"client_version": "0.169.0"}).status_code == 200


# ── namespaces ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_functions_of_a_namespace_are_flattened_for_the_model_and_unflattened_in_calls(client, upstream):
    reply_with_calls(upstream, call("crm__get", {"id": 7}), call("crm__note", {"input": "hm"}))
    tools = [function("get"), CRM]
    response = client.responses.create(model="chat", input="hi", tools=tools)

    sent = upstream.requests[-1].body["tools"]
    assert [tool["function"]["name"] for tool in sent] == ["get", "crm__get", "crm__note"]
    assert sent[1]["function"]["description"] == "[crm: Sales.]\n\nGet one."
    get, note = response.output
    assert (get.type, get.namespace, get.name, json.loads(get.arguments)) == ("function_call", "crm", "get", {"id": 7})
    assert (note.type, note.namespace, note.name, note.input) == ("custom_tool_call", "crm", "note", "hm")
    assert [tool.type for tool in response.tools] == ["function", "namespace"]

    outputs = [
        {"type": "function_call_output", "call_id": "call_0", "output": "Ada", "name": "get", "namespace": "crm"},
        {"type": "custom_tool_call_output", "call_id": "call_1", "output": "noted"},
    ]
    replayed = [{"role": "user", "content": "hi"}, *(item.to_dict() for item in response.output), *outputs]
    for options in ({"input": outputs, "previous_response_id": response.id}, {"input": replayed}):
        client.responses.create(model="chat", tools=tools, **options)
        _, assistant, *results = upstream.requests[-1].body["messages"]
        assert [made["function"]["name"] for made in assistant["tool_calls"]] == ["crm__get", "crm__note"]
        assert [result["content"] for result in results] == ["Ada", "noted"]


def test_a_streamed_call_in_a_namespace_has_it_from_the_first_event_on(client, upstream):
    reply_with_calls(upstream, call("crm__get", {"id": 7}))
    events = list(client.responses.create(model="chat", input="hi", tools=[CRM], stream=True))

    shown = [
        event.item for event in events if event.type in ("response.output_item.added", "response.output_item.done")
    ]
    assert [(item.namespace, item.name) for item in shown] == [("crm", "get")] * 2
    assert "crm__get" not in str(events)


def test_an_upstream_with_the_responses_api_gets_flattened_functions_too(client, upstream):
    upstream.set_replies(upstream.responses(HELLO))
    made = {"type": "function_call", "call_id": "call_0", "name": "get", "namespace": "crm", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "call_0", "output": "Ada", "namespace": "crm"}
    client.responses.create(model="responses", input=[made, output], tools=[CRM])

    sent = upstream.requests[-1].body
    assert [tool["name"] for tool in sent["tools"]] == ["crm__get", "crm__note"]
    assert sent["input"][0]["name"] == "crm__get"
    assert not any("namespace" in item for item in sent["input"])


def test_names_in_namespaces_are_unambiguous_and_at_most_64_characters_long(client, upstream):
    tools = [
        function("a__b__c"),
        namespace("a", function("b__c"), function("x" * 100)),
        namespace("a__b", function("c")),
        namespace("y" * 128, function("x" * 100), function("x" * 99 + "z")),
    ]
    client.responses.create(model="chat", input="hi", tools=tools)
    names = offered(upstream)

    assert names[0] == "a__b__c"
    assert len(set(names)) == len(names) == 6
    assert all(len(name) <= 64 for name in names)
    reply_with_calls(upstream, call(names[3]), call(names[5]))
    response = client.responses.create(model="chat", input="hi", tools=tools)
    assert [(made.namespace, made.name) for made in response.output] == [("a__b", "c"), ("y" * 128, "x" * 99 + "z")]


def test_tool_choice_can_name_a_function_of_a_namespace(client, upstream):
    choice = {"type": "function", "name": "get"}
    reply_with_calls(upstream, call("crm__get"))
    response = client.responses.create(model="chat", input="hi", tools=[CRM], tool_choice=choice)

    assert upstream.requests[-1].body["tool_choice"] == {"type": "function", "function": {"name": "crm__get"}}
    assert response.output[0].name == "get"
    with pytest.raises(openai.BadRequestError, match="'sub' not found"):
        client.responses.create(model="chat", input="hi", tools=[CRM], tool_choice={**choice, "name": "sub"})


def test_a_demanded_call_that_is_not_made_is_named_as_the_client_declared_it(client, upstream):
    upstream.set_replies(*[upstream.chat(HELLO)] * 3)
    with pytest.raises(openai.APIStatusError, match="did not call 'get' of namespace 'crm' in 3 attempts") as caught:
        client.responses.create(model="chat", input="hi", tools=[CRM], tool_choice={"type": "function", "name": "get"})
    assert "crm__get" not in str(caught.value)
    assert "'crm__get'" in upstream.requests[-1].body["messages"][-1]["content"]


def test_the_error_for_a_name_that_is_not_unique_has_the_paths_in_the_namespace(client):
    with pytest.raises(openai.BadRequestError, match=r"'tools\[0\].tools\[0\]' and 'tools\[0\].tools\[1\]'") as caught:
        client.responses.create(model="chat", input="hi", tools=[namespace("a", function("c"), function("c"))])
    assert caught.value.param == "tools[0].tools[1].name"


@pytest.mark.parametrize(
    "call_of_client",
    [
        {"type": "function_call", "call_id": "c", "name": "get", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c", "name": "get", "input": "x"},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
    ],
    ids=lambda item: item["type"],
)
def test_the_namespace_of_a_replayed_call_is_a_name(client, upstream, call_of_client):
    with pytest.raises(openai.BadRequestError, match="does not match pattern") as caught:
        client.responses.create(model="chat", input=[USER, {**call_of_client, "namespace": "b d!/é"}])
    assert caught.value.param == "input[1].namespace"
    assert upstream.requests == []


# ── additional_tools ─────────────────────────────────────────────────────────────────────────────────────────────────

ADDED = {"type": "additional_tools", "role": "developer", "tools": [CRM, function("late")]}


def test_additional_tools_are_offered_and_stay_in_effect_in_the_history(client, upstream):
    tools = [function("early")]
    first = client.responses.create(model="chat", input=[USER, ADDED], tools=tools)
    assert offered(upstream) == ["early", "crm__get", "crm__note", "late"]
    assert [message["role"] for message in upstream.requests[-1].body["messages"]] == ["user"]

    client.responses.create(model="chat", input="again", previous_response_id=first.id)
    assert offered(upstream) == ["crm__get", "crm__note", "late"]

    conversation = client.conversations.create(items=[ADDED])
    for _ in range(2):
        client.responses.create(model="chat", input="hi", conversation=conversation.id)
        assert offered(upstream) == ["crm__get", "crm__note", "late"]
    listed = client.conversations.items.list(conversation.id, order="asc").data[0].to_dict()
    assert (listed["type"], listed["id"][:3], listed["tools"]) == ("additional_tools", "at_", ADDED["tools"])


def test_a_later_declaration_of_a_tool_replaces_the_earlier_one(client, upstream):
    again = {**ADDED, "tools": [function("late", description="New."), namespace("crm", function("find"))]}
    client.responses.create(model="chat", input=[ADDED, USER, again])

    assert offered(upstream) == ["crm__get", "crm__note", "late", "crm__find"]
    assert upstream.requests[-1].body["tools"][2]["function"]["description"] == "New."


def test_tool_choice_can_name_an_additional_tool(client, upstream):
    reply_with_calls(upstream, call("late"))
    client.responses.create(model="chat", input=[ADDED, USER], tool_choice={"type": "function", "name": "late"})
    assert upstream.requests[-1].body["tool_choice"] == {"type": "function", "function": {"name": "late"}}


def test_additional_tools_are_validated(client):
    for item, param in (
        ({**ADDED, "role": "user"}, "input[1].role"),
        ({**ADDED, "tools": [{"type": "function"}]}, "input[1].tools[0].name"),
        ({**ADDED, "tools": [function("f"), WEB_SEARCH]}, "input[1].tools[1].type"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model="chat", input=[USER, item])
        assert caught.value.param == param


DANGLING = function("f", strict=True, parameters={"type": "object", "properties": {"a": {"$ref": "#/$defs/no"}}})


@pytest.mark.parametrize(
    "item",
    [{**ADDED, "tools": [DANGLING]}, {"type": "tool_search_output", "call_id": None, "tools": [DANGLING]}],
    ids=lambda item: item["type"],
)
def test_schemas_of_functions_that_items_bring_are_checked(client, upstream, item):
    within = {**item, "tools": [function("g"), namespace("n", function("g"), DANGLING)]}
    for given, path in ((item, "tools[0]"), (within, "tools[1].tools[1]")):
        with pytest.raises(openai.BadRequestError, match="Invalid schema for function 'f'") as caught:
            client.responses.create(model="chat", input=[USER, given])
        assert (caught.value.param, caught.value.code) == (f"input[1].{path}.parameters", "invalid_function_parameters")
        with pytest.raises(openai.BadRequestError) as caught:
            client.conversations.create(items=[given])
        assert caught.value.param == f"items[0].{path}.parameters"
    assert upstream.requests == []


def test_additional_tools_survive_a_compaction(client, server, upstream):
    history = [ADDED, *[{"role": "user", "content": f"number {at} {'x ' * 200}"} for at in range(20)]]
    with server.http() as http:
        compacted = http.post("/v1/responses/compact", json={"input": history}).json()["output"]
    client.responses.create(model="chat", input=[*compacted, USER])
    assert offered(upstream) == ["late", "crm__get", "crm__note"]

    newer = {**ADDED, "tools": [function("late", description="New."), function("newest")]}
    client.responses.create(model="chat", input=[newer, *compacted, USER])
    assert offered(upstream) == ["late", "crm__get", "crm__note", "newest"]
    assert upstream.requests[-1].body["tools"][0]["function"]["description"] == "New."


# ── tool_search ──────────────────────────────────────────────────────────────────────────────────────────────────────

FOUND = [namespace("crm", function("get", defer_loading=True)), function("late", defer_loading=True)]


def test_a_tool_search_of_the_client_is_a_call_and_its_output_brings_tools(client, upstream):
    reply_with_calls(upstream, call("tool_search", {"query": "customers"}))
    tools = [SEARCH, function("late", defer_loading=True)]
    events = list(client.responses.create(model="chat", input="hi", tools=tools, stream=True))

    assert offered(upstream) == ["tool_search"]
    assert upstream.requests[-1].body["tools"][0]["function"]["description"] == "Find tools."
    assert [event.type for event in events if "output_item" in event.type or "tool" in event.type] == [
        "response.output_item.added",
        "response.output_item.done",
    ]
    assert not any("delta" in event.type for event in events)
    added, done = (event.item.to_dict() for event in events if "output_item" in event.type)
    assert added.pop("id") == done.pop("id")
    common = {"type": "tool_search_call", "call_id": "call_0", "execution": "client"}
    assert added == {**common, "arguments": {}, "status": "in_progress"}
    assert done == {**common, "arguments": {"query": "customers"}, "status": "completed"}

    response = events[-1].response
    search = response.output[0]
    assert search.id.startswith("tsc_")
    output = {"type": "tool_search_output", "call_id": "call_0", "execution": "client", "tools": FOUND}
    replayed = [{"role": "user", "content": "hi"}, search.to_dict(), output]
    for options in ({"input": [output], "previous_response_id": response.id}, {"input": replayed}):
        latest = client.responses.create(model="chat", tools=tools, **options)
        assert set(offered(upstream)) == {"tool_search", "crm__get", "late"}
        _, assistant, result = upstream.requests[-1].body["messages"]
        made = assistant["tool_calls"][0]["function"]
        assert (made["name"], json.loads(made["arguments"])) == ("tool_search", {"query": "customers"})
        assert result["content"] == "These tools can be called from now on: crm__get, late."
        if "previous_response_id" in options:
            client.responses.create(model="chat", input="next", previous_response_id=latest.id, tools=tools)
            assert set(offered(upstream)) == {"tool_search", "crm__get", "late"}


def test_arguments_of_a_tool_search_are_an_object_whatever_the_model_wrote(client, upstream):
    reply_with_calls(upstream, AnswerCall("tool_search", "no JSON"))
    response = client.responses.create(model="chat", input="hi", tools=[SEARCH])
    assert response.output[0].arguments == {"not_json": "no JSON"}


def test_the_output_of_a_tool_search_without_its_call_is_refused(client):
    output = {"type": "tool_search_output", "call_id": "call_9", "execution": "client", "tools": []}
    with pytest.raises(openai.BadRequestError, match="No tool call found for tool search output with call_id call_9"):
        client.responses.create(model="chat", input=[output])


def test_with_a_tool_search_of_the_server_all_deferred_tools_are_offered(client, upstream):
    client.responses.create(model="chat", input="hi", tools=[{"type": "tool_search"}, *FOUND])
    assert offered(upstream) == ["crm__get", "late"]


# ── tools that the server lacks ──────────────────────────────────────────────────────────────────────────────────────


def test_by_default_a_tool_that_this_server_lacks_is_refused(client, upstream):
    with pytest.raises(openai.BadRequestError, match="'web_search' is not available on this server") as caught:
        client.responses.create(model="chat", input="hi", tools=[function("f"), WEB_SEARCH])
    assert caught.value.param == "tools[1].type"
    assert upstream.requests == []


def test_by_configuration_tools_that_this_server_lacks_are_ignored_and_the_response_says_which(ignoring, upstream):
    added = {**ADDED, "tools": [{"type": "mcp", "server_label": "a", "server_url": "https://mcp.example"}]}
    response = ignoring.responses.create(model="chat", input=[USER, added], tools=[function("f"), WEB_SEARCH])

    assert offered(upstream) == ["f"]
    ignored = [{"param": "tools[1]", "type": "web_search"}, {"param": "input[1].tools[0]", "type": "mcp"}]
    assert response.to_dict()["antwort:ignored_tools"] == ignored
    assert ignoring.responses.retrieve(response.id).to_dict()["antwort:ignored_tools"] == ignored
    assert [tool.type for tool in response.tools] == ["function", "web_search"]
    plain = ignoring.responses.create(model="chat", input="hi", tools=[function("f")])
    assert "antwort:ignored_tools" not in plain.to_dict()


def replace_stored(server, item_id: str, item: dict) -> None:
    """Replace a stored item, as an older version may have stored it."""
    with closing(sqlite3.connect(server.directory / ".antwort" / "antwort.db")) as database, database:
        body = json.dumps(item).encode()
        changed = database.execute("UPDATE conversation_items SET body = ? WHERE id = ?", (body, item_id))
        assert changed.rowcount == 1


OLD_ITEMS = [
    {"type": "additional_tools", "tools": [function("old")]},
    {"type": "tool_search_call"},
    {"type": "tool_search_output", "tools": 5},
    {"type": "shell_call", "action": "x"},
    {"type": "message", "content": "without a role"},
]


@pytest.mark.parametrize("model", ["chat", "responses"])
@pytest.mark.parametrize("old", OLD_ITEMS, ids=[item["type"] for item in OLD_ITEMS])
def test_a_history_with_an_item_of_an_older_version_stays_usable(client, server, upstream, old, model):
    upstream.set_replies(upstream.responses(HELLO) if model == "responses" else upstream.chat(HELLO))
    conversation = client.conversations.create(items=[USER, USER])
    stored = client.conversations.items.list(conversation.id, order="asc").data[0].id
    replace_stored(server, stored, {**old, "id": stored})
    response = client.responses.create(model=model, input="go on", conversation=conversation.id)
    again = client.responses.create(model=model, input=[{"type": "item_reference", "id": stored}, USER])

    assert (response.status, again.status) == ("completed", "completed")
    assert "without a role" not in json.dumps([request.body for request in upstream.requests])
    assert "tools" not in upstream.requests[-1].body
    assert client.responses.create(model=model, input="more", previous_response_id=again.id).status == "completed"
    assert client.conversations.items.retrieve(stored, conversation_id=conversation.id).id == stored


def test_a_tool_of_the_stored_history_that_this_server_lacks_is_ignored(client, server, upstream):
    conversation = client.conversations.create(items=[ADDED, USER])
    stored = client.conversations.items.list(conversation.id, order="asc").data[0].id
    replace_stored(server, stored, {**ADDED, "id": stored, "tools": [WEB_SEARCH, function("f")]})
    response = client.responses.create(model="chat", input="go on", conversation=conversation.id)

    assert offered(upstream) == ["f"]
    assert response.to_dict()["antwort:ignored_tools"] == [{"param": "conversation", "type": "web_search"}]
    with pytest.raises(openai.BadRequestError, match="'web_search' is not available") as caught:
        client.responses.create(model="chat", input=[{**ADDED, "tools": [WEB_SEARCH]}], conversation=conversation.id)
    assert caught.value.param == "input[0].tools[0].type"


@pytest.mark.parametrize("choice, param", [({"type": "web_search"}, "tool_choice.type"), ("required", "tool_choice")])
def test_an_ignored_tool_cannot_be_forced(ignoring, upstream, choice, param):
    with pytest.raises(openai.BadRequestError) as caught:
        ignoring.responses.create(model="chat", input="hi", tools=[WEB_SEARCH], tool_choice=choice)
    assert caught.value.param == param
    assert upstream.requests == []


LACKING = [
    {"type": "web_search", "newopt": 1},
    {"type": "mcp", "server_label": "a", "server_url": "https://u:pw@mcp.example", "authorization": "sk-1", "new": {}},
    {"type": "file_search"},
    {"type": "hologram", "depth": 3, "headers": {"x-key": "sk-2"}},
]


def test_options_of_tools_that_are_ignored_are_not_checked(ignoring, ignoring_server, upstream):
    added = {**ADDED, "tools": [*LACKING, function("late")]}
    body = {"model": "chat", "input": [USER, added], "tools": [function("f"), *LACKING]}
    with ignoring_server.http() as http:  # the SDK warns of types that it does not know
        created = http.post("/v1/responses", json=body).json()
        stored = http.get(f"/v1/responses/{created['id']}").json()
        listed = http.get(f"/v1/responses/{created['id']}/input_items", params={"order": "asc"}).json()["data"]

    assert offered(upstream) == ["f", "late"]
    types = ["web_search", "mcp", "file_search", "hologram"]
    for shown in (created, stored):
        assert shown["antwort:ignored_tools"] == [
            {"param": f"input[1].tools[{at}]", "type": kind} for at, kind in enumerate(types)
        ]
        assert shown["tools"][1] == LACKING[0]
        assert [tool["type"] for tool in shown["tools"]] == ["function", *types]
    assert listed[1]["tools"][3] == {"type": "hologram", "depth": 3, "headers": {"x-key": "<redacted>"}}
    assert not {"sk-1", "sk-2", "pw"} & set(re.findall(r"[\w-]+", json.dumps([created, stored, listed])))

    ignoring.responses.create(model="chat", input="again", previous_response_id=created["id"])
    assert offered(upstream) == ["late"]


def test_ignored_tools_in_items_of_a_conversation_are_not_checked(ignoring, upstream):
    conversation = ignoring.conversations.create(items=[{**ADDED, "tools": [*LACKING, function("late")]}])
    ignoring.responses.create(model="chat", input="hi", conversation=conversation.id)
    assert offered(upstream) == ["late"]


@pytest.mark.parametrize("tool", [WEB_SEARCH, LACKING[0], {"type": "image_generation", "size": "auto"}])
def test_an_ignored_tool_may_be_declared_twice(ignoring, upstream, tool):
    response = ignoring.responses.create(model="chat", input="hi", tools=[tool, tool, function("f")])
    assert offered(upstream) == ["f"]
    assert response.to_dict()["antwort:ignored_tools"] == [{"param": "tools[1]", "type": tool["type"]}]


@pytest.mark.parametrize(
    "tool, message",
    [
        (LACKING[0], "Tool type 'web_search' is not available on this server"),
        (LACKING[1], "Tool type 'mcp' is not available on this server"),
        (LACKING[2], "Tool type 'file_search' is not available on this server"),
        (LACKING[3], "Invalid value: 'hologram'. Supported values are: 'function'"),
    ],
)
def test_a_tool_that_this_server_lacks_is_refused_by_its_type_whatever_its_options(client, tool, message):
    for fields, path in (
        ({"input": "hi", "tools": [function("f"), tool]}, "tools[1].type"),
        ({"input": [USER, {**ADDED, "tools": [tool]}]}, "input[1].tools[0].type"),
    ):
        with pytest.raises(openai.BadRequestError, match=re.escape(message)) as caught:
            client.responses.create(model="chat", **fields)
        assert caught.value.param == path


@pytest.mark.parametrize(
    "tool, param",
    [
        (function("f", newopt=1), "newopt"),
        ({"type": "tool_search", "newopt": 1}, "newopt"),
        ({"type": "custom"}, "name"),
    ],
)
def test_options_of_available_tools_are_checked_beside_ignored_ones(ignoring, tool, param):
    for fields, path in (
        ({"input": "hi", "tools": [LACKING[0], tool]}, "tools[1]"),
        ({"input": [USER, {**ADDED, "tools": [LACKING[0], tool]}]}, "input[1].tools[1]"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            ignoring.responses.create(model="chat", **fields)
        assert caught.value.param == f"{path}.{param}"


@pytest.mark.parametrize(
    "choice",
    ["required", {"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp", "server_label": "a"}]}],
)
def test_a_required_call_with_only_ignored_tools_is_refused_with_their_types(ignoring, upstream, choice):
    with pytest.raises(openai.BadRequestError, match="not available on this server, and ignored: 'mcp', 'web_search'"):
        ignoring.responses.create(model="chat", input="hi", tools=LACKING[:2], tool_choice=choice)
    assert upstream.requests == []


def test_a_required_call_with_only_a_tool_search_of_the_server_is_refused(client, upstream):
    for choice in ("required", {"type": "tool_search"}):
        with pytest.raises(openai.BadRequestError, match="none of the tools that it allows offers a function"):
            client.responses.create(model="chat", input="hi", tools=[{"type": "tool_search"}], tool_choice=choice)
    assert upstream.requests == []


# ── WebSocket ────────────────────────────────────────────────────────────────────────────────────────────────────────

UPGRADE = (
    "GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.fixture(scope="module")
def server_without_websocket(tmp_path_factory):
    config = {"server": {"websocket": {"enabled": False}}}
    with run_server(tmp_path_factory.mktemp("http-only"), config) as running:
        yield running


def test_a_disabled_websocket_is_answered_426_and_a_plain_get_405(server_without_websocket):
    server = server_without_websocket
    address = urlsplit(server.url)
    with closing(socket.create_connection((address.hostname, address.port), timeout=30)) as connection:
        connection.sendall(UPGRADE.encode())
        answer = connection.makefile("rb")
        assert answer.readline() == b"HTTP/1.1 426 Upgrade Required\r\n"
        headers = dict(line.decode().strip().split(": ", 1) for line in iter(answer.readline, b"\r\n"))
        error = json.loads(answer.read(int(headers["content-length"])))["error"]
    assert (headers["upgrade"], headers["connection"]) == ("HTTP/1.1", "upgrade")
    assert (error["type"], error["code"]) == ("invalid_request_error", "websocket_not_supported")
    assert "HTTP" in error["message"]
    assert "WebSocket library" not in server.read_log()
    with server.http() as http:
        assert http.get("/v1/responses").status_code == 405
