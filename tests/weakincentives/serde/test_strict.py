from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any, Generic, Literal, NotRequired, TypedDict, TypeVar, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot
from jsonschema import Draft202012Validator

from weakincentives.errors import ParseError, SchemaError
from weakincentives.serde import parse_strict, schema, strict_schema
from weakincentives.serde.strict import to_strict

T = TypeVar("T")


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Options(TypedDict):
    loud: bool
    times: NotRequired[int]


class Dog(msgspec.Struct, tag=True):
    name: str
    barks: int = 2


class Cow(msgspec.Struct, tag=True):
    name: str
    milk: bool = True


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: list[T]
    total: int = 0


@dataclass
class Tree:
    name: str
    kids: list[Tree] = field(default_factory=list["Tree"])
    twin: Tree | None = None


@dataclass
class Everything:
    number: int
    share: float
    kind: Literal["big", 3, None]  # noqa: PYI061 - a spelling of its own
    color: Color
    either: int | str | bool
    maybe: int | None = 5
    colors: tuple[Color, ...] = (Color.RED,)
    page: Page[Color] | None = None
    options: Options | None = None
    pets: list[Dog | Cow] = field(default_factory=list[Dog | Cow])


@dataclass
class Nothing:
    pass


TYPES = [Everything, Tree, Page[int], Page[Tree], Nothing]

# ── Property: output that follows the schema can be parsed ────────────────────────────────────────────────────────────


def instances(node: dict[str, Any], named: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """Instances of a strict schema; supports all keywords of the strict subset."""
    match node:
        case {"$ref": reference}:
            return st.deferred(lambda: named[reference])
        case {"anyOf": members}:
            return st.one_of([instances(member, named) for member in reversed(members)])
        case {"enum": values}:
            return st.sampled_from(values)
        case {"type": "object", "properties": properties}:
            return st.fixed_dictionaries({key: instances(inner, named) for key, inner in properties.items()})
        case {"type": "array", "items": inner}:
            return st.lists(instances(inner, named), max_size=2)
    simple: dict[str, st.SearchStrategy[Any]] = {
        "string": st.text(),
        "integer": st.integers(-(10**6), 10**6),
        "number": st.floats(-1e6, 1e6) | st.integers(-(10**6), 10**6),
        "boolean": st.booleans(),
        "null": st.none(),
    }
    return simple[node["type"]]


@cache
def instances_of(as_type: type) -> st.SearchStrategy[Any]:
    written = strict_schema(as_type)
    named: dict[str, st.SearchStrategy[Any]] = {}
    for name, node in written.get("$defs", {}).items():
        named[f"#/$defs/{name}"] = instances(node, named)
    return instances(written, named)


surprises = st.sampled_from([None, True, 0, 1.5, 2.0, "", "red", "Dog", [], [1], {}, {"surprise": 1}])


@pytest.mark.parametrize("as_type", TYPES, ids=str)
@given(data=st.data())
def test_instances_of_a_strict_schema_can_be_parsed(as_type, data):
    assert parse_strict(json.dumps(data.draw(instances_of(as_type))), as_type) is not None


@pytest.mark.parametrize("as_type", TYPES, ids=str)
@given(data=st.data())
def test_mutated_instance_is_valid_exactly_if_it_can_be_parsed(as_type, data):
    instance = data.draw(instances_of(as_type))
    holder = {"": instance}
    container, key = data.draw(st.sampled_from(list(locations(holder))))
    container[key] = data.draw(surprises)

    assert allowed(as_type).is_valid(holder[""]) is can_be_parsed(json.dumps(holder[""]), as_type)


@cache
def allowed(as_type: type) -> Draft202012Validator:
    """Instances of the strict schema in which properties with defaults may be missing."""
    written, plain = strict_schema(as_type), schema(as_type)
    definitions = {
        name: {**node, "required": plain["$defs"][name].get("required", [])} if "required" in node else node
        for name, node in written.get("$defs", {}).items()
    }
    return Draft202012Validator({**written, "required": plain["required"], "$defs": definitions})


def can_be_parsed(text: str, as_type: type) -> bool:
    try:
        parse_strict(text, as_type)
    except ParseError:
        return False
    return True


def locations(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    for key, inner in list(node.items() if isinstance(node, dict) else enumerate(node)):
        yield node, key
        if isinstance(inner, dict | list):
            yield from locations(inner)


@pytest.mark.parametrize("as_type", TYPES, ids=str)
def test_objects_are_closed_and_all_properties_required(as_type):
    for node in nodes(strict_schema(as_type)):
        if node.get("type") == "object":
            assert node["additionalProperties"] is False
            assert node["required"] == list(node["properties"])


@pytest.mark.parametrize("as_type", TYPES, ids=str)
def test_no_unsupported_keywords(as_type):
    for node in nodes(strict_schema(as_type)):
        assert not node.keys() & {"default", "title", "uniqueItems", "discriminator", "prefixItems", "contentEncoding"}
        assert "$ref" not in node or node.keys() == {"$ref"}
        assert node.keys() & {"type", "anyOf", "$ref"}
        assert node.get("type") != "array" or node["items"]


def nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    inner = [*node.get("properties", {}).values(), *node.get("$defs", {}).values(), *node.get("anyOf", [])]
    if "items" in node:
        inner.append(node["items"])
    for one in inner:
        yield from nodes(one)


# ── Generated schemas ─────────────────────────────────────────────────────────────────────────────────────────────────


def properties(**plain: dict[str, Any]) -> dict[str, Any]:
    """The strict form of optional properties."""
    return cast("dict[str, Any]", to_strict({"type": "object", "properties": plain})["properties"])


def test_complete_schema():
    assert strict_schema(Tree) == snapshot(
        {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "kids": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/Tree"}}, {"type": "null"}]},
                "twin": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"type": "null"}]},
            },
            "required": ["name", "kids", "twin"],
            "additionalProperties": False,
            "$defs": {
                "Tree": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string"},
                        "kids": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/Tree"}}, {"type": "null"}]},
                        "twin": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"type": "null"}]},
                    },
                    "required": ["name", "kids", "twin"],
                    "additionalProperties": False,
                }
            },
        }
    )
    assert strict_schema(Nothing) == {"type": "object", "properties": {}, "required": [], "additionalProperties": False}


def test_optional_properties_are_nullable_and_describe_the_default():
    assert properties(
        plain={"type": "integer", "default": 3},
        described={"type": "string", "description": "Who", "default": "me"},
        sentence={"type": "string", "description": "Who is it?", "default": ""},
        referred={"$ref": "#/$defs/X", "description": "An X"},
        made={"type": "array", "items": {"type": "string"}},
    ) == {
        "plain": {"anyOf": [{"type": "integer"}, {"type": "null"}], "description": "Null means 3."},
        "described": {"anyOf": [{"type": "string"}, {"type": "null"}], "description": 'Who. Null means "me".'},
        "sentence": {"anyOf": [{"type": "string"}, {"type": "null"}], "description": 'Who is it? Null means "".'},
        "referred": {"anyOf": [{"$ref": "#/$defs/X"}, {"type": "null"}], "description": "An X"},
        "made": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
    }


def test_nullable_property_does_not_map_null_to_the_default():
    assert properties(
        union={"anyOf": [{"type": "integer"}, {"type": "null"}], "default": 5},
        literal={"enum": [None, "z"], "default": "z", "description": "How"},
        none={"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
    ) == {
        "union": {"anyOf": [{"type": "integer"}, {"type": "null"}], "description": "The default is 5."},
        "literal": {"enum": [None, "z"], "type": ["null", "string"], "description": 'How. The default is "z".'},
        "none": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    }
    assert (
        parse_strict(
            '{"number": 1, "share": 1, "kind": null, "color": "red", "either": 1, "maybe": null}', Everything
        ).maybe
        is None
    )


@pytest.mark.parametrize(
    "plain, expected",
    [
        ({"enum": ["a", "b"]}, {"enum": ["a", "b"], "type": "string"}),
        ({"enum": [1, "b", None]}, {"enum": [1, "b", None], "type": ["integer", "string", "null"]}),
        ({"const": True}, {"const": True, "type": "boolean"}),
        ({"$ref": "#/$defs/X", "description": "An X"}, {"anyOf": [{"$ref": "#/$defs/X"}], "description": "An X"}),
        ({"$ref": "#/$defs/X", "title": "X"}, {"$ref": "#/$defs/X"}),
        ({"type": "string", "format": "uuid"}, {"type": "string", "format": "uuid"}),
        ({"type": "string", "format": "decimal"}, {"type": "string"}),
        (
            {"type": "string", "contentEncoding": "base64", "description": "Bytes"},
            {"type": "string", "description": "Bytes. Encoded as base64."},
        ),
        (
            {"type": "array", "items": {"enum": [1]}, "uniqueItems": True, "minItems": 1},
            {"type": "array", "items": {"enum": [1], "type": "integer"}, "minItems": 1},
        ),
    ],
)
def test_unsupported_keywords_are_rewritten(plain, expected):
    written = to_strict({"type": "object", "properties": {"it": plain}, "required": ["it"]})

    assert written["properties"]["it"] == expected


@pytest.mark.parametrize(
    "plain, why",
    [
        ({}, r"\$\.it accepts any value"),
        ({"type": "array", "items": {}}, r"\$\.it\[\] accepts any value"),
        ({"anyOf": [{"type": "null"}, {}]}, r"\$\.it accepts any value"),
        ({"type": "object"}, r"\$\.it is a mapping with arbitrary keys"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, r"\$\.it is a mapping with arbitrary keys"),
        ({"type": "array", "prefixItems": [{"type": "string"}]}, r"\$\.it is a tuple of fixed length"),
        ({"type": "object", "properties": {"deep": {}}}, r"\$\.it\.deep accepts any value"),
    ],
)
def test_schema_without_a_strict_form_is_rejected_with_its_path(plain, why):
    with pytest.raises(SchemaError, match=why):
        to_strict({"type": "object", "properties": {"it": plain}})


def test_definition_without_a_strict_form_is_rejected():
    with pytest.raises(SchemaError, match=r"Inner\.it accepts any value"):
        to_strict(
            {"type": "object", "properties": {}, "$defs": {"Inner": {"type": "object", "properties": {"it": {}}}}}
        )


@pytest.mark.parametrize("root", [{"type": "array", "items": {"type": "string"}}, {"anyOf": []}, {}])
def test_root_must_be_an_object(root):
    with pytest.raises(SchemaError, match="must be an object: use a dataclass"):
        to_strict(root)


def test_properties_named_like_keywords():
    plain = {"type": "object", "properties": {"type": {"type": "string"}, "anyOf": {"type": "array", "items": {}}}}

    with pytest.raises(SchemaError, match=r"\$\.anyOf\[\]"):
        to_strict(plain)
    assert properties(required={"type": "string"}, enum={"type": "integer"}).keys() == {"required", "enum"}


def test_argument_is_not_changed():
    plain = {"type": "object", "properties": {"n": {"type": "integer", "default": 1}}}
    before = json.dumps(plain)

    to_strict(plain)

    assert json.dumps(plain) == before
