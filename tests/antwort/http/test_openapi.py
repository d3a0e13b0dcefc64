from __future__ import annotations

import inspect
import re
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from antwort.api import items
from antwort.api.events import EVENTS, OutputTextDelta, to_json
from antwort.http.app import RESOURCES
from antwort.http.openapi import OPERATIONS, document, path_names

ROUTES = {
    (method.lower(), route.path.replace(":path", "")): route.endpoint
    for room in RESOURCES
    for route in room.routes
    for method in route.methods - {"HEAD"}
    if route.path != "/openapi.json"
}
NAMES = [operation.name for operation in OPERATIONS]


def body_schema(name: str) -> dict:
    whole = document()
    return {**whole, **whole["components"]["schemas"][name]}


def accepts(name: str, value: Any) -> bool:
    return Draft202012Validator(body_schema(name)).is_valid(value)


def test_every_route_is_described_and_nothing_else():
    assert {(operation.method, operation.path) for operation in OPERATIONS} == set(ROUTES)
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("operation", OPERATIONS, ids=NAMES)
def test_an_operation_takes_what_its_handler_reads(operation):
    source = inspect.getsource(ROUTES[operation.method, operation.path])
    described = document()["paths"][operation.path][operation.method]
    read = re.findall(r"read_json\(request, (\w+)\)", source)
    query = set(re.findall(r'(?:flag|whole_number|query_params\.get)\((?:request, )?"([\w\[\]]+)"', source))
    if "included(" in source:
        query |= {"include[]"}
    if "page_query(" in source:
        query |= {"after", "before", "limit", "order"}
    if "included(" in source:
        query |= {"include[]"}
    forms = ["multipart/form-data"] if "receive_upload(" in source else []

    assert read == ([operation.takes.__name__] if operation.takes else [])
    bodies = [*(["application/json"] if read else []), *forms, *(["application/x-tar"] if "_body(" in source else [])]
    assert list(described.get("requestBody", {}).get("content", {})) == bodies
    parameters = {(one["in"], one["name"]) for one in described["parameters"]}
    assert parameters == {("query", name) for name in query} | {("path", name) for name in path_names(operation.path)}


def test_every_reference_leads_somewhere():
    whole = document()
    schemas = whole["components"]["schemas"]

    def references(value):
        if isinstance(value, dict):
            yield from ([value["$ref"]] if isinstance(value.get("$ref"), str) else [])
            for inner in value.values():
                yield from references(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from references(inner)

    assert {reference.rpartition("/")[2] for reference in references(whole)} <= set(schemas)


def test_every_link_leads_to_an_operation_and_fills_its_path():
    links = [
        (name, link)
        for path in document()["paths"].values()
        for described in path.values()
        for name, link in described["responses"]["200"]["links"].items()
    ]
    wanted = {operation.name: set(path_names(operation.path)) for operation in OPERATIONS}

    assert {name for name, _ in links} >= {"getResponse", "getFile", "getConversationItem", "cancelResponse"}
    assert all(set(link["parameters"]) == wanted[name] for name, link in links)


@pytest.mark.parametrize(
    "item, right",
    [
        ({"role": "user", "content": "hello"}, True),
        ({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}, True),
        ({"type": "message", "role": "nobody", "content": "hello"}, False),
        ({"type": "function_call_output", "call_id": "c", "output": "x"}, True),
        ({"type": "function_call_output", "output": "x"}, False),
        ({"type": "reasoning", "summary": [{"text": "x"}]}, True),
        ({"type": "of the future", "whatever": {}}, True),
        ({"type": {}}, False),
        ({"type": None, "role": "user", "content": "x"}, False),
        ({"id": "msg_1"}, True),
        ({}, False),
    ],
)
def test_an_item_is_described_as_it_is_read(item, right):
    try:
        items.read(item)
    except msgspec.ValidationError:
        read = False
    else:
        read = True

    assert (read, accepts("CreateResponse", {"input": [item]})) == (right, right)


def test_events_are_described():
    described = document()["paths"]["/v1/responses"]["post"]["responses"]["200"]["content"]["text/event-stream"]
    names = {
        ref["$ref"].rpartition("/")[2] for ref in described["schema"]["properties"]["data"]["contentSchema"]["anyOf"]
    }
    sent = OutputTextDelta(item_id="msg_1", output_index=0, content_index=0, delta="x", sequence_number=3)

    assert names == {event.__name__ for event in EVENTS}
    assert accepts("OutputTextDelta", msgspec.json.decode(to_json(sent)))


@pytest.mark.parametrize("kind", ["message", "shell_call", "of the future"])
def test_a_call_id_is_a_string_whatever_has_it(kind):
    item = {"type": kind, "role": "user", "content": "x"}

    assert accepts("GivenItem", {**item, "call_id": "call_1"})
    assert accepts("GivenItem", {**item, "call_id": None})
    assert not accepts("GivenItem", {**item, "call_id": [1]})
