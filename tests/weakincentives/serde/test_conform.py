from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import pytest

from weakincentives.errors import ParseError
from weakincentives.serde import parse_strict
from weakincentives.serde.conform import admits_null, conform, type_info


class Options(TypedDict):
    loud: bool
    times: NotRequired[int]


class Dog(msgspec.Struct, tag=True):
    name: str
    barks: int = 2


class Cow(msgspec.Struct, tag=True):
    name: str
    milk: float = 1.5


@dataclass
class Point:
    x: int
    y: int = 3


@dataclass
class Shapes:
    one: Point
    maybe: Point | None = None
    some: list[Point] = field(default_factory=list[Point])
    by_name: dict[str, Point] = field(default_factory=dict[str, Point])
    pair: tuple[Point, Annotated[Point, "the other"]] | None = None
    options: Options | None = None
    pet: Dog | Cow | None = None


def conformed(**data: object) -> object:
    return conform(data, Shapes, allow_extra_keys=False)


@pytest.mark.parametrize(
    "data, expected",
    [
        ({"one": {"x": 1, "y": None}}, {"one": {"x": 1}}),
        ({"some": [{"x": 1, "y": None}, {"x": 2, "y": 5}]}, {"some": [{"x": 1}, {"x": 2, "y": 5}]}),
        ({"by_name": {"a": {"x": 1, "y": None}}}, {"by_name": {"a": {"x": 1}}}),
        ({"pair": [{"x": 1, "y": None}, {"x": 2, "y": None}]}, {"pair": [{"x": 1}, {"x": 2}]}),
        ({"options": {"loud": True, "times": None}}, {"options": {"loud": True}}),
        ({"pet": {"type": "Cow", "name": "Elsa", "milk": None}}, {"pet": {"type": "Cow", "name": "Elsa"}}),
        ({"some": None}, {}),
    ],
    ids=["dataclass", "list", "mapping", "tuple in a union", "typed dict", "tagged struct", "the list itself"],
)
def test_null_that_stands_for_a_default_is_dropped(data, expected):
    assert conformed(**data) == expected


@pytest.mark.parametrize("field_name", ["maybe", "pair", "options", "pet"])
def test_null_that_is_a_value_is_kept(field_name):
    assert conformed(**{field_name: None}) == {field_name: None}


def test_null_for_a_required_field_is_kept():
    assert conformed(one=None) == {"one": None}

    with pytest.raises(ParseError, match=r"Expected `object`, got `null` \(at \$\.one\)"):
        parse_strict('{"one": null}', Shapes)


@pytest.mark.parametrize(
    "data, path",
    [
        ({"one": {"x": 1, "z": 0}}, "$.one"),
        ({"some": [{"x": 1}, {"x": 1, "z": 0}]}, "$.some[1]"),
        ({"by_name": {"a": {"x": 1, "z": 0}}}, "$.by_name.a"),
        ({"pair": [{"x": 1}, {"x": 1, "z": 0}]}, "$.pair[1]"),
        ({"options": {"loud": True, "z": 0}}, "$.options"),
        ({"pet": {"type": "Dog", "name": "Rex", "z": 0}}, "$.pet"),
        ({"maybe": {"x": 1, "z": 0}}, "$.maybe"),
    ],
)
def test_unknown_key_is_rejected_at_any_depth(data, path):
    with pytest.raises(ParseError, match="unknown key 'z'; known keys: ") as caught:
        conformed(**data)

    assert caught.value.path == path
    assert conform(data, Shapes, allow_extra_keys=True) == data


def test_struct_is_selected_by_its_tag():
    read = parse_strict('{"one": {"x": 1, "y": 2}, "pet": {"type": "Dog", "name": "Rex", "barks": null}}', Shapes)

    assert read.pet == Dog("Rex", 2)
    with pytest.raises(ParseError, match="Invalid value 'Cat'"):
        parse_strict('{"one": {"x": 1}, "pet": {"type": "Cat", "name": "Tom"}}', Shapes)


@pytest.mark.parametrize("data", [[], [{"x": 1}], [{"x": 1}] * 3, "no list at all"])
def test_data_of_another_type_is_unchanged(data):
    assert conformed(pair=data) == {"pair": data}


@dataclass
class Numbers:
    whole: int | None = None
    either: float | None = None


def test_integral_floats_become_integers_only_for_integer_types():
    assert conform({"whole": 2.0, "either": 2.5}, Numbers, allow_extra_keys=False) == {"whole": 2, "either": 2.5}
    assert isinstance(parse_strict('{"whole": 2.0}', Numbers).whole, int)
    assert isinstance(parse_strict('{"either": 2.0}', Numbers).either, float)
    with pytest.raises(ParseError, match=r"got `float` \(at \$\.whole\)"):
        parse_strict('{"whole": 2.5}', Numbers)


@pytest.mark.parametrize(
    "as_type, expected",
    [
        (int, False),
        (int | None, True),
        (Annotated[int | None, msgspec.Meta(description="n")], True),
        (None, True),
        (Any, True),
        (object, True),
        (Literal["a", None], True),  # noqa: PYI061 - a spelling of its own
        (Literal["a"], False),
        (Point, False),
        (list[None], False),
    ],
)
def test_admits_null(as_type, expected):
    assert admits_null(type_info(as_type)) is expected
