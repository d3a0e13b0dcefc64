"""`pure`: detects changed arguments, accepts unchanged ones and copies nothing."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.dbc import pure
from weakincentives.dbc.purity import fingerprint
from weakincentives.errors import ContractError

T = TypeVar("T")


@dataclass
class Box:
    items: list[int] = field(default_factory=list)


class Slotted:
    __slots__ = ("__hidden", "value")

    def __init__(self, value: object) -> None:
        self.value = value
        self.__hidden = value

    def hide(self, value: object) -> None:
        self.__hidden = value


def call_pure(function, *args):
    return pure(function)(*args)


def changes():
    """One way to change an argument for each kind of mutable value."""
    yield [1, 2], lambda it: it.append(3)
    yield [1, 2], lambda it: it.reverse()
    yield {"a": 1}, lambda it: it.update(a=2)
    yield {"a": 1, "b": 2}, lambda it: it.update(a=it.pop("a"))
    yield {1, 2}, lambda it: it.discard(1)
    yield bytearray(b"ab"), lambda it: it.extend(b"c")
    yield deque([1]), lambda it: it.rotate() or it.append(2)
    yield ([1], 2), lambda it: it[0].append(3)
    yield {"deep": [{"list": []}]}, lambda it: it["deep"][0]["list"].append(1)
    yield Box([1]), lambda it: it.items.append(2)
    yield Box([1]), lambda it: setattr(it, "items", [1])
    yield Slotted(1), lambda it: setattr(it, "value", 2)
    yield Slotted(1), lambda it: it.hide(2)
    yield [1], lambda it: it.__setitem__(0, True)


@pytest.mark.parametrize("argument, change", list(changes()))
def test_change_of_each_kind_is_detected(argument, change):
    with pytest.raises(ContractError, match=r"is @pure but changed its argument `it`"):
        call_pure(change, argument)


def test_changed_arguments_are_named():
    def move(source: list[int], target: list[int], log: list[str]) -> None:
        target.append(source.pop())

    with pytest.raises(ContractError, match=r"argument `source`, `target`$"):
        call_pure(move, [1], [], [])


def test_arguments_that_cannot_be_copied():
    def look(lock: object, function: object, module: object, cls: object) -> str:
        return "seen"

    assert call_pure(look, threading.Lock(), print, threading, Box) == "seen"


def test_cyclic_values():
    ring: list[object] = [1]
    ring.append(ring)

    assert call_pure(len, ring) == 2
    with pytest.raises(ContractError):
        call_pure(lambda it: it.insert(0, 0), ring)


def test_objects_without_eq_count_as_unchanged():
    class Plain:
        def __init__(self) -> None:
            self.value = [1]

    assert call_pure(lambda it: it.value[0], Plain()) == 1


def test_generic_aliases_count_as_unchanged():
    class Items(Generic[T]): ...

    assert call_pure(lambda it: setattr(it, "__msgspec_cache__", 1), Items[int]) is None


def test_pure_rejects_generators():
    def generator():
        yield 1

    with pytest.raises(TypeError, match="coroutine or a generator"):
        pure(generator)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=True) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner),
    )
)
def test_fingerprint_is_stable_and_hashable(value):
    assert fingerprint(value) == fingerprint(value)
    hash(fingerprint(value))
