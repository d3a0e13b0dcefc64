from __future__ import annotations

from dataclasses import InitVar, dataclass, field, make_dataclass
from datetime import date, datetime, time, timedelta
from enum import Enum
from typing import Annotated, Any, ClassVar, Generic, NotRequired, TypedDict, TypeVar

import msgspec
import pytest
from inline_snapshot import snapshot
from jsonschema import Draft202012Validator

from weakincentives.errors import SchemaError
from weakincentives.serde import schema, strict_schema

T = TypeVar("T")


@dataclass(frozen=True)
class Documentation:
    """As PEP 727 proposed."""

    documentation: str


@dataclass
class Place:
    city: Annotated[str, "Where it is."]
    zip_code: str = field(default="", metadata={"description": "Five digits."})


@dataclass
class Described:
    text: Annotated[str, "In a plain string."]
    meta: Annotated[int, msgspec.Meta(description="In msgspec's own way.", ge=1)]
    data: str = field(metadata={"description": "In the field's metadata."})
    pep: Annotated[str, Documentation("In PEP 727's way.")]
    place: Annotated[Place, "A nested one."]
    places: Annotated[list[Place], "Many nested ones."]
    outside: Annotated[str | None, "Around a union."] = None
    inside: Annotated[str, "Within a union."] | None = None
    first: Annotated[str, 7, "The first text counts.", "Not this."] = ""


class Window(TypedDict):
    wide: Annotated[int, "In a typed dict."]
    high: NotRequired[Annotated[int, "In one that may be missing."]]


class Valve(msgspec.Struct, rename="camel"):
    is_open: Annotated[bool, "In a struct that renames."]


@dataclass
class Pump:
    window: Window
    valve: Valve


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: list[T]
    total: Annotated[int, "How many there are."] = 0


class Color(Enum):
    """What it looks like."""

    RED = "red"
    BLUE = "blue"


@dataclass
class Tree:
    """A tree of trees."""

    name: str
    kids: list[Tree] = field(default_factory=list["Tree"])


@dataclass
class Anything:
    what: Any
    thing: object
    rows: list
    by_name: dict[str, list[Any]]


@dataclass
class Moments:
    at: datetime
    several: list[datetime]
    named: dict[str, datetime]
    clock: time
    day: date
    length: timedelta
    maybe: Annotated[datetime, "When."] | int | None = None


# ── Descriptions ──────────────────────────────────────────────────────────────────────────────────────────────────────


def described(properties: dict[str, Any]) -> dict[str, str]:
    return {name: node.get("description") for name, node in properties.items()}


@pytest.mark.parametrize("write", [schema, strict_schema])
def test_all_kinds_of_descriptions(write):
    texts = described(write(Described)["properties"])

    assert texts.pop("first") in {"The first text counts.", 'The first text counts. Null means "".'}
    assert texts == {
        "text": "In a plain string.",
        "meta": "In msgspec's own way.",
        "data": "In the field's metadata.",
        "pep": "In PEP 727's way.",
        "place": "A nested one.",
        "places": "Many nested ones.",
        "outside": "Around a union.",
        "inside": "Within a union.",
    }


@pytest.mark.parametrize("write", [schema, strict_schema])
def test_descriptions_at_every_depth(write):
    place = write(Described)["$defs"]["Place"]["properties"]

    assert place["city"]["description"] == "Where it is."
    assert place["zip_code"]["description"].startswith("Five digits.")
    assert write(Page[Place])["$defs"]["Place"]["properties"]["city"]["description"] == "Where it is."
    assert write(Page[Place])["properties"]["total"]["description"].startswith("How many there are.")


@pytest.mark.parametrize("write", [schema, strict_schema])
def test_descriptions_of_typed_dicts_and_structs(write):
    definitions = write(Pump)["$defs"]

    assert described(definitions["Window"]["properties"]) == {
        "wide": "In a typed dict.",
        "high": "In one that may be missing.",
    }
    assert described(definitions["Valve"]["properties"]) == {"isOpen": "In a struct that renames."}


@pytest.mark.parametrize("write", [schema, strict_schema])
def test_descriptions_argument_overrides_those_of_the_type(write):
    written = write(Described, descriptions={"text": "Other words.", "place": "Elsewhere."})

    assert written["properties"]["text"]["description"] == "Other words."
    assert written["properties"]["place"]["description"] == "Elsewhere."
    assert write(Described)["properties"]["text"]["description"] == "In a plain string."


def test_description_of_an_unknown_field_is_rejected():
    with pytest.raises(SchemaError, match="Place has no field 'town' to describe"):
        schema(Place, descriptions={"town": "Where?"})


def test_docstring_is_the_description_of_the_object():
    assert schema(Tree)["description"] == "A tree of trees."
    assert schema(Page[Color])["$defs"]["Color"]["description"] == "What it looks like."
    assert "description" not in schema(Page[int])


# ── Generated schemas ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_root_is_inlined_and_other_types_are_references():
    assert schema(Page[Place]) == snapshot(
        {
            "type": "object",
            "properties": {
                "items": {"type": "array", "items": {"$ref": "#/$defs/Place"}},
                "total": {"description": "How many there are.", "type": "integer", "default": 0},
            },
            "required": ["items"],
            "$defs": {
                "Place": {
                    "type": "object",
                    "properties": {
                        "city": {"description": "Where it is.", "type": "string"},
                        "zip_code": {"description": "Five digits.", "type": "string", "default": ""},
                    },
                    "required": ["city"],
                }
            },
        }
    )


def test_recursive_type():
    assert schema(Tree) == snapshot(
        {
            "description": "A tree of trees.",
            "type": "object",
            "properties": {"name": {"type": "string"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}},
            "required": ["name"],
            "$defs": {
                "Tree": {
                    "description": "A tree of trees.",
                    "type": "object",
                    "properties": {
                        "name": {"type": "string"},
                        "kids": {"type": "array", "items": {"$ref": "#/$defs/Tree"}},
                    },
                    "required": ["name"],
                }
            },
        }
    )


def test_no_titles_with_class_names():
    assert "title" not in schema(Page[Place])["$defs"]["Place"]
    assert "title" not in schema(Page[Place])


def test_any_value_is_an_empty_schema_and_every_array_has_items():
    assert schema(Anything)["properties"] == {
        "what": {},
        "thing": {},
        "rows": {"type": "array", "items": {}},
        "by_name": {"type": "object", "additionalProperties": {"type": "array", "items": {}}},
    }
    with pytest.raises(SchemaError, match="accepts any value"):
        strict_schema(Anything)


@pytest.mark.parametrize("write", [schema, lambda as_type: schema(Page[as_type])["$defs"]["Moments"]])
def test_time_formats(write):
    properties = write(Moments)["properties"]

    assert properties == {
        "at": {"type": "string", "format": "date-time"},
        "several": {"type": "array", "items": {"type": "string", "format": "date-time"}},
        "named": {"type": "object", "additionalProperties": {"type": "string", "format": "date-time"}},
        "clock": {"type": "string", "format": "time"},
        "day": {"type": "string", "format": "date"},
        "length": {"type": "string", "format": "duration"},
        "maybe": {
            "description": "When.",
            "anyOf": [{"type": "string", "format": "date-time"}, {"type": "integer"}, {"type": "null"}],
            "default": None,
        },
    }


@dataclass
class Parent:
    first: int
    shared: ClassVar[int] = 0


@dataclass(kw_only=True)
class Child(Parent):
    second: str
    third: tuple[int, str] = (1, "a")


def test_inherited_fields_are_included_and_class_variables_are_not():
    written = schema(Child)

    assert written["properties"].keys() == {"first", "second", "third"}
    assert sorted(written["required"]) == ["first", "second"]


@pytest.mark.parametrize("as_type", [Described, Pump, Page[Place], Page[Page[int]], Tree, Anything, Moments, Child])
def test_schemas_are_valid(as_type):
    Draft202012Validator.check_schema(schema(as_type))


def test_classes_of_the_same_name_are_distinct():
    def place() -> type:
        @dataclass
        class Place:
            number: int

        return Place

    other = place()
    both = schema(make_pair(Place, other))

    assert len(both["$defs"]) == 2
    found = [both["$defs"][both["properties"][name]["$ref"].rpartition("/")[2]] for name in ("one", "two")]
    assert [set(node["properties"]) for node in found] == [{"city", "zip_code"}, {"number"}]


def make_pair(one: type, two: type) -> type:
    return make_dataclass("Pair", [("one", one), ("two", two)])


def test_returned_schema_is_a_copy():
    schema(Tree)["properties"]["name"]["type"] = "changed"
    strict_schema(Tree)["properties"].clear()

    assert schema(Tree)["properties"]["name"] == {"type": "string"}
    assert strict_schema(Tree)["properties"]


# ── Types without a schema ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Imaginary:
    number: complex


@dataclass
class WithInitVar:
    number: int
    seed: InitVar[int] = 0


@dataclass
class TwoInOne:
    either: Place | Tree


@pytest.mark.parametrize("as_type", [Imaginary, WithInitVar, TwoInOne])
@pytest.mark.parametrize("write", [schema, strict_schema])
def test_type_without_a_schema_is_named(write, as_type):
    with pytest.raises(SchemaError, match=rf"(?s)'{as_type.__name__}' has no JSON schema: .*Use JSON-like types"):
        write(as_type)


def test_unresolvable_annotation_error_has_a_hint():
    @dataclass
    class Hidden:
        number: int

    @dataclass
    class Local:
        inner: Hidden

    with pytest.raises(SchemaError, match=r"'Hidden' is not defined.* define dataclasses at module level"):
        schema(Local)
