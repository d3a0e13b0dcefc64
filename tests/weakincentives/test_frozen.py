from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, is_dataclass

import pytest

from weakincentives import FrozenDataclass


@FrozenDataclass()
class Point:
    x: int = 0
    y: int = 0


@FrozenDataclass(slots=True, kw_only=True)
class Slotted:
    x: int


def test_instances_are_immutable_dataclasses():
    assert is_dataclass(Point)
    assert [field.name for field in fields(Point)] == ["x", "y"]
    assert {Point(1), Point(1), Point(2)} == {Point(1), Point(2)}
    with pytest.raises(FrozenInstanceError):
        Point().x = 1  # pyright: ignore[reportAttributeAccessIssue] - the point of the test


def test_options_of_dataclasses():
    assert not hasattr(Slotted(x=1), "__dict__")
    with pytest.raises(TypeError):
        Slotted(1)  # pyright: ignore[reportCallIssue] - the point of the test
