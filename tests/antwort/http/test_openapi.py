from __future__ import annotations

import inspect
import re
from functools import cache
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from antwort.api.errors import ApiError
from antwort.api.events import EVENTS, OutputTextDelta, to_json
from antwort.api.requests import read_items
from antwort.http.app import ROUTES
from antwort.http.openapi import document

OPERATION_IDS = [route.operation.operation_id for route in ROUTES]


@cache
def openapi() -> dict:
    return document(ROUTES)


def body_schema(name: str) -> dict:
    return {**openapi(), **openapi()["components"]["schemas"][name]}


def accepts(name: str, value: Any) -> bool:
    return Draft202012Validator(body_schema(name)).is_valid(value)


def test_every_route_has_a_unique_operation_id_and_path_and_a_summary():
    operations = [(path, method) for path, methods in openapi()["paths"].items() for method in methods]

    assert len(set(OPERATION_IDS)) == len(OPERATION_IDS) == len(operations)
    assert all(route.summary for route in ROUTES)


@pytest.mark.parametrize("route", ROUTES, ids=OPERATION_IDS)
def test_parameters_and_bodies_match_what_the_handler_reads(route):
    source, operation = inspect.getsource(route.endpoint), route.operation
    described = openapi()["paths"][route.documented_path][route.method]
    read = re.findall(r"read_json\(request, (\w+)\)", source)
    read += [operation.body.__name__] if "read_body(" in source else []  # another wire decodes it
    query = set(re.findall(r'(?:parse_boolean|parse_integer|query_params\.get)\((?:request, )?"([\w\[\]]+)"', source))
    if "parse_include(" in source:
        query |= {"include[]"}
    if "parse_page_query(" in source:
        query |= {"after", "before", "limit", "order"}
    forms = ["multipart/form-data"] if re.search(r"\breceive_\w+\(", source) else []

    assert read == ([operation.body.__name__] if operation.body else [])
    archives = ["application/x-tar"] if re.search(r"\w(?<!read)_body\(", source) else []
    bodies = [*(["application/json"] if read else []), *forms, *archives]
    assert list(described.get("requestBody", {}).get("content", {})) == bodies
    parameters = {(one["in"], one["name"]) for one in described["parameters"]}
    assert parameters == {("query", name) for name in query} | {("path", name) for name in route.parameters}


def test_every_reference_names_an_existing_schema():
    schemas = openapi()["components"]["schemas"]

    def references(value):
        if isinstance(value, dict):
            yield from ([value["$ref"]] if isinstance(value.get("$ref"), str) else [])
            for inner in value.values():
                yield from references(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from references(inner)

    assert {reference.rpartition("/")[2] for reference in references(openapi())} <= set(schemas)


def test_every_link_names_an_operation_and_provides_all_its_path_parameters():
    links = [
        (name, link)
        for path in openapi()["paths"].values()
        for described in path.values()
        for name, link in described["responses"]["200"]["links"].items()
    ]
    parameters = {route.operation.operation_id: set(route.parameters) for route in ROUTES}

    assert {name for name, _ in links} >= {"getResponse", "getFile", "getConversationItem", "cancelResponse"}
    assert all(set(link["parameters"]) == parameters[name] for name, link in links)


@pytest.mark.parametrize(
    "item, is_valid",
    [
        ({"role": "user", "content": "hello"}, True),
        ({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}, True),
        ({"type": "message", "role": "unknown", "content": "hello"}, False),
        ({"type": "function_call_output", "call_id": "c", "output": "x"}, True),
        ({"type": "function_call_output", "output": "x"}, False),
        ({"type": "reasoning", "summary": [{"text": "x"}]}, True),
        ({"type": "web_search_call", "id": "ws_1", "any_field": {}}, True),
        ({"type": "code_interpreter_call", "container_id": "cntr_1"}, True),
        ({"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "s", "tools": []}, True),
        ({"type": "mcp_list_tools"}, False),
        ({"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}, True),
        ({"type": "mcp_approval_response"}, False),
        ({"type": "shell_call", "call_id": "c", "action": "x"}, False),
        ({"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}}, True),
        ({"role": "user", "content": "hello", "status": "bogus"}, False),
        ({"role": "user", "content": "hello", "status": None, "phase": None}, True),
        ({"role": "assistant", "content": "hello", "phase": "commentary"}, True),
        ({"role": "assistant", "content": "hello", "phase": 7}, False),
        ({"type": "unknown_type", "any_field": {}}, False),
        ({"type": "program", "call_id": "c"}, False),
        ({"type": "computer_call", "call_id": "c"}, True),
        ({"type": "computer_call", "call_id": "c", "actions": 5}, False),
        ({"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot"}}, True),
        ({"type": "computer_call_output", "call_id": "c", "output": {"type": "screenshot"}}, False),
        ({"role": "user", "content": "hello", "id": None}, True),
        ({"role": "user", "content": "hello", "id": "rs_1"}, False),
        ({"role": "user", "content": "hello", "id": ""}, False),
        ({"role": "user", "content": "hello", "id": "msg_é"}, False),
        ({"role": "user", "content": "hello", "id": "msg_" + "1" * 61}, False),
        ({"type": "function_call_output", "call_id": "", "output": "x"}, False),
        ({"type": "function_call_output", "call_id": "c" * 65, "output": "x"}, False),
        ({"type": "compaction", "id": "any-1", "encrypted_content": "x"}, True),
        ({"type": {}}, False),
        ({"type": None, "role": "user", "content": "x"}, False),
        ({"id": "msg_1"}, True),
        ({}, False),
    ],
)
def test_the_item_schema_accepts_exactly_the_items_that_the_parser_accepts(item, is_valid):
    try:
        read_items([item], "input")
    except ApiError:
        is_parsed = False
    else:
        is_parsed = True

    assert (is_parsed, accepts("CreateResponse", {"input": [item]})) == (is_valid, is_valid)


def test_every_event_has_a_schema():
    described = openapi()["paths"]["/v1/responses"]["post"]["responses"]["200"]["content"]["text/event-stream"]
    names = {
        ref["$ref"].rpartition("/")[2] for ref in described["schema"]["properties"]["data"]["contentSchema"]["anyOf"]
    }
    sent = OutputTextDelta(item_id="msg_1", output_index=0, content_index=0, delta="x", sequence_number=3)

    assert names == {event.__name__ for event in EVENTS}
    assert accepts("OutputTextDelta", msgspec.json.decode(to_json(sent)))


@pytest.mark.parametrize("kind", ["message", "web_search_call"])
def test_call_id_must_be_a_string_or_null_for_every_item_type(kind):
    item = {"type": kind, "role": "user", "content": "x"}

    assert accepts("GivenItem", {**item, "call_id": "call_1"})
    assert accepts("GivenItem", {**item, "call_id": None})
    assert not accepts("GivenItem", {**item, "call_id": [1]})
