from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from antwort.api.errors import ApiError
from antwort.api.validation import schemas
from antwort.api.validation.schemas import GivenSchema, check_schemas

REQUIRED = "'required' is required to be supplied and to be an array including every key in properties."
STRICT = {"type": "object", "additionalProperties": False}


def check(schema: dict[str, Any], *, strict: bool = False) -> None:
    given = GivenSchema(schema, "function 'f'", "tools[0].parameters", "invalid_value", strict)
    deque(check_schemas([given]), maxlen=0)


def refusal(schema: dict[str, Any], *, strict: bool = False) -> str:
    with pytest.raises(ApiError) as caught:
        check(schema, strict=strict)
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, "tools[0].parameters", "invalid_value")
    return caught.value.message.removeprefix("Invalid schema for function 'f': In context=")


TREE = {
    **STRICT,
    "properties": {
        "$ref": {"type": "string"},
        "root": {"$ref": "#"},
        "next": {"anyOf": [{"$ref": "#/$defs/a~1b%20c"}, {"type": "null"}]},
        "list": {"type": "array", "items": {"$ref": "#/definitions/D"}},
        "kind": {"enum": [{"$ref": "#/nowhere"}], "default": {"$ref": "#/nowhere"}},
    },
    "required": ["$ref", "root", "next", "list", "kind"],
    "$defs": {"a/b c": {**STRICT, "properties": {"self": {"$ref": "#/$defs/a~1b%20c"}}, "required": ["self"]}},
    "definitions": {"D": {"type": "string"}},
}


@pytest.mark.parametrize(
    "schema",
    [TREE, {**STRICT, "properties": {}}, STRICT, {"properties": 3, "required": 3, "anyOf": {}, "items": [3], **STRICT}],
)
def test_valid_strict_schemas(schema):
    check(schema, strict=True)
    check(schema)


@pytest.mark.parametrize("kind", [{}, {"type": "string"}, {"type": ["object", "null"]}, {"$ref": "#"}])
def test_a_strict_schema_is_of_type_object(kind):
    got = kind.get("type")
    expected = f"""schema must be a JSON Schema of 'type: "object"', got 'type: "{got}"'."""

    assert refusal(kind, strict=True) == f"Invalid schema for function 'f': {expected}"
    check(kind)


@pytest.mark.parametrize("ref", ["#foo", "Foo", "https://x.example/y", 5, None, "#/$defs", "#/$defs/A/items"])
def test_references_of_strict_schemas_are_definitions(ref):
    schema = {**STRICT, "properties": {"a": {"$ref": ref}}, "required": ["a"], "$defs": {"A": {"items": {}}}}
    expected = "reference can only point to definitions defined at the top level of the schema."

    assert refusal(schema, strict=True) == f"('properties', 'a'), {expected}"
    check(schema)


def test_a_long_reference_is_not_parsed(monkeypatch):
    parsed: list[str] = []
    monkeypatch.setattr(schemas, "unquote", lambda key: parsed.append(key) or key)

    assert "was not found in the schema." in refusal({"$ref": "#/" + "%41/" * 10_000})
    assert parsed == []
    given = GivenSchema({"$defs": {"a": {}}}, "function 'f'", "p", "invalid_value", strict=False)
    given.schema["properties"] = {str(n): {"$ref": "#/$defs/a" + "/$defs/a" * 400} for n in range(1000)}
    inner = given.schema["$defs"]["a"]
    for _ in range(400):
        inner["$defs"] = {"a": {}}
        inner = inner["$defs"]["a"]
    assert len(list(check_schemas([given]))) > 40


@pytest.mark.parametrize(
    "schema, path, target",
    [
        ({"$ref": "#/$defs/Y"}, "()", "#/$defs/Y"),
        ({"properties": {"a": {"$ref": "#/$defs/Y"}}, "$defs": {"X": {}}}, "('properties', 'a')", "#/$defs/Y"),
        ({"anyOf": [{}, {"items": {"$ref": "#/anyOf/2"}}]}, "('anyOf', '1', 'items')", "#/anyOf/2"),
        ({"$defs": {"X": {"not": {"$ref": "#/$defs/X/not/x"}}}}, "('$defs', 'X', 'not')", "#/$defs/X/not/x"),
        ({"prefixItems": [{"$ref": "#/required"}], "required": ["a"]}, "('prefixItems', '0')", "#/required"),
    ],
)
def test_a_reference_without_target(schema, path, target):
    expected = f"{path}, reference to component '{target}' which was not found in the schema."

    assert refusal(schema) == expected


@pytest.mark.parametrize(
    "schema, message",
    [
        ({"type": "object"}, "(), 'additionalProperties' is required to be supplied and to be false."),
        (
            {**STRICT, "properties": {"a": {"type": ["object", "null"]}}, "required": ["a"]},
            "('properties', 'a'), 'additionalProperties' is required to be supplied and to be false.",
        ),
        (
            {**STRICT, "properties": {"a": {"properties": {}}}, "required": ["a"]},
            "('properties', 'a'), 'additionalProperties' is required to be supplied and to be false.",
        ),
        (
            {**STRICT, "properties": {"a": {}, "b": {}}, "required": ["a"]},
            f"(), {REQUIRED} Missing 'b'.",
        ),
        (
            {**STRICT, "properties": {"a": {}}},
            f"(), {REQUIRED} Missing 'a'.",
        ),
        (
            {**STRICT, "properties": {"a": {}}, "required": ["a", "c"]},
            f"(), {REQUIRED} Extra required key 'c' supplied.",
        ),
        (
            {**STRICT, "properties": {"a": {}, "b": {"$ref": "#/properties/a"}}, "required": ["a", "b"]},
            "('properties', 'b'), reference can only point to definitions defined at the top level of the schema.",
        ),
    ],
)
def test_rules_of_strict_schemas(schema, message):
    assert refusal(schema, strict=True) == message
    check(schema)


def test_errors_are_short():
    long = "x" * 100_000
    deep: dict[str, Any] = {"$ref": f"#/{long}"}
    for _ in range(120):
        deep = {"properties": {long: deep}}

    assert len(refusal(deep)) < 3000


def test_a_large_schema_is_checked_in_steps():
    schema = {"properties": {f"p{n}": {"$ref": "#/$defs/X"} for n in range(5000)}, "$defs": {"X": {}}}

    large = GivenSchema(schema, "function 'f'", "p", "invalid_value", strict=False)
    small = GivenSchema({}, "function 'g'", "p", "invalid_value", strict=False)

    assert len(list(check_schemas([large]))) == 5
    assert len(list(check_schemas([small] * 3000))) == 3
