from __future__ import annotations

from antwort.http import containers, conversations, files, health, models, responses
from antwort.http.openapi import OPERATIONS, document


def test_every_route_is_described_and_nothing_else():
    routed = {
        (method.lower(), route.path.replace(":path", ""))
        for room in (responses, conversations, containers, files, models, health)
        for route in room.routes
        for method in route.methods - {"HEAD"}
    }

    assert {(operation.method, operation.path) for operation in OPERATIONS} == routed


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
