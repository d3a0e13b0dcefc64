from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar, get_args, get_origin

import pytest

from weakincentives.prompt.generics import Parametric

A = TypeVar("A")
B = TypeVar("B")


class Box(Parametric, Generic[A]):
    def __init__(self, *, wanted: object = None) -> None:
        self.known_while_built = self.type_arguments
        self.wanted = wanted


class StrictBox(Box[A], Generic[A]):
    pass


class IntBox(Box[int]):
    pass


@dataclass(frozen=True, kw_only=True)
class Pair(Parametric, Generic[A, B]):
    name: str = ""


class NamedPair(Pair[str, B], Generic[B]):
    pass


class Swapped(Pair[B, A], Generic[A, B]):
    pass


class ListPair(Pair[A, list[A]], Generic[A]):
    pass


class Closed(Pair[int, str], Generic[A]):
    pass


def test_type_arguments_are_available_in_init():
    assert Box[int]().known_while_built == (int,)
    assert Pair[int, str]().type_arguments == (int, str)


def test_no_type_arguments_without_subscript():
    assert Box().type_arguments == ()


def test_none_becomes_none_type():
    assert Box[None]().type_arguments == (type(None),)


def test_specialised_classes_are_cached():
    assert Box[int] is Box[int]
    assert Box[int] is not Box[str]
    assert type(Box[int]()) is Box[int]


def test_instances_are_instances_of_the_generic_class():
    assert isinstance(Box[int](), Box)
    assert isinstance(StrictBox[int](), Box)
    assert not issubclass(type(Box[int]()), type(Box[str]()))


def test_class_name_contains_the_arguments():
    assert Box[int].__name__ == "Box[int]"
    assert Pair[int, list[str]].__qualname__ == "Pair[int, list]"
    assert repr(Pair[int, str](name="x")) == "Pair[int, str](name='x')"
    assert Box[int].__module__ == Box.__module__


def test_subclass_inherits_the_arguments():
    class Inner(IntBox):
        pass

    assert IntBox().type_arguments == (int,)
    assert Inner().type_arguments == (int,)


def test_generic_subclass_forwards_its_arguments():
    assert StrictBox[int]().type_arguments == (int,)


@pytest.mark.parametrize(
    "specialized, arguments",
    [
        (NamedPair[int], (str, int)),
        (Swapped[int, str], (str, int)),
        (ListPair[int], (int, list[int])),
        (Closed[bytes], (int, str)),
    ],
    ids=["one of two given", "in another order", "used twice", "all given"],
)
def test_arguments_are_mapped_to_those_of_the_first_class(specialized, arguments):
    assert specialized().type_arguments == arguments


def test_subscript_with_type_variables_returns_typings_alias():
    generic: Any = Box

    assert get_origin(generic[A]) is Box
    assert get_args(generic[A]) == (A,)
    assert get_origin(generic[list[TypeVar("C")]]) is Box


def test_too_many_arguments_are_rejected():
    generic: Any = Box

    with pytest.raises(TypeError, match="Too many"):
        generic[int, str]


def test_frozen_dataclass_stays_frozen():
    pair = Pair[int, str](name="x")

    assert pair == Pair[int, str](name="x")
    assert hash(pair) == hash(Pair[int, str](name="x"))
    assert pair != Pair[int, int](name="x")
    assert replace(pair, name="y").type_arguments == (int, str)
    assert [field.name for field in fields(pair)] == ["name"]
    with pytest.raises(AttributeError):
        pair.name = "z"  # pyright: ignore[reportAttributeAccessIssue] - the point of the test
