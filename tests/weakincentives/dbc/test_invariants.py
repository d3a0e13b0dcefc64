"""`invariant`: checked after the outermost call on an instance."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from weakincentives.dbc import invariant
from weakincentives.errors import ContractError


@pytest.fixture
def account():
    """A class with the invariant `balance >= 0`."""

    @invariant(lambda self: self.balance >= 0, "the balance is never negative")
    class Account:
        def __init__(self, balance: int = 0) -> None:
            self.balance = balance

        def withdraw(self, amount: int) -> int:
            """Take some out."""
            self.balance -= amount
            return self.balance

        def overdraw_and_repay(self, amount: int) -> None:
            self.withdraw(amount)
            self.balance += amount

        def fail(self) -> None:
            self.balance = -1
            raise LookupError("mine")

        def _break(self) -> None:
            self.balance = -1

    return Account


def test_checked_after_init(account):
    assert account(1).balance == 1
    with pytest.raises(ContractError, match=r"invariant of .*Account violated: the balance is never negative \(self="):
        account(-1)


def test_checked_after_public_methods(account):
    one = account(5)

    assert one.withdraw(3) == 2
    with pytest.raises(ContractError):
        one.withdraw(amount=3)


def test_may_be_violated_during_a_call(account):
    one = account(1)

    one.overdraw_and_repay(5)

    assert one.balance == 1


def test_private_methods_are_not_checked(account):
    one = account(1)

    one._break()

    assert one.balance == -1


def test_instances_are_checked_separately():
    @invariant(lambda self: self.value >= 0)
    class Cell:
        def __init__(self, value: int) -> None:
            self.value = value

        def move(self, amount: int, other: Cell) -> None:
            other.take(amount)
            self.value += amount

        def take(self, amount: int) -> None:
            self.value -= amount

    with pytest.raises(ContractError):
        Cell(5).move(2, Cell(1))


def test_exception_is_not_replaced_by_a_contract_error(account):
    with pytest.raises(LookupError, match="mine"):
        account(1).fail()


def test_predicate_may_call_methods_of_the_instance():
    @invariant(lambda self: self.total() < 10)
    class Bag:
        def __init__(self, *items: int) -> None:
            self.items = items

        def total(self) -> int:
            return sum(self.items)

    assert Bag(1, 2).total() == 3
    with pytest.raises(ContractError):
        Bag(5, 6)


def test_decorates_a_frozen_dataclass_with_slots():
    @invariant(lambda self: self.low <= self.high)
    @dataclass(frozen=True, slots=True)
    class Range:
        low: int
        high: int

    assert Range(1, 2).high == 2
    with pytest.raises(ContractError):
        Range(2, 1)


def test_class_without_init_accepts_arguments_of_new():
    @invariant(lambda self: self)
    class Name(str):
        __slots__ = ()

        def shout(self) -> str:
            return self.upper()

    assert Name("ada").shout() == "ADA"


def test_checked_methods_keep_name_and_docstring(account):
    assert account.withdraw.__doc__ == "Take some out."
    assert account.withdraw.__qualname__.endswith("Account.withdraw")
