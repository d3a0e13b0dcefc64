"""Contracts are off unless asked for, and off means that nothing is left of them."""

from __future__ import annotations

import pytest

from weakincentives.dbc import checking, ensure, invariant, is_checking, pure, require
from weakincentives.dbc.switch import VARIABLE


@pytest.mark.parametrize("value, on", [(None, False), ("", False), ("0", False), ("1", True), ("yes", True)])
def test_the_environment_decides(monkeypatch, value, on):
    if value is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, value)

    assert is_checking() is on


def test_a_scope_wins_over_the_environment_and_ends(monkeypatch):
    monkeypatch.setenv(VARIABLE, "1")

    with checking(on=False):
        assert not is_checking()
        with checking():
            assert is_checking()
        assert not is_checking()

    assert is_checking()


def test_a_scope_ends_when_its_block_raises():
    with checking(on=False):
        with pytest.raises(ZeroDivisionError), checking():
            _ = 1 / 0

        assert not is_checking()


def test_switched_off_every_decorator_returns_the_very_same_object():
    def function(x: int) -> int:
        return x

    class Thing:
        def method(self) -> None: ...

    before = dict(vars(Thing))

    with checking(on=False):
        assert require(lambda x: x)(function) is function
        assert ensure(lambda result: result)(function) is function
        assert pure(function) is function
        assert invariant(lambda self: False)(Thing) is Thing

    assert dict(vars(Thing)) == before


def test_the_choice_is_made_when_decorating_not_when_calling():
    with checking():

        @require(lambda x: x > 0)
        def checked(x: int) -> int:
            return x

    with checking(on=False), pytest.raises(AssertionError):
        checked(-1)
