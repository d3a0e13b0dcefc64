"""`require` and `ensure`: when they speak up, what they can see, and what they say."""

from __future__ import annotations

import inspect
import re

import pytest

from weakincentives.dbc import checking, ensure, require
from weakincentives.errors import ContractError


@pytest.fixture(autouse=True)
def contracts_on():
    with checking():
        yield


def test_a_kept_precondition_is_silent():
    @require(lambda x: x > 0)
    def half(x: float) -> float:
        return x / 2

    assert half(4) == 2
    assert half(x=4) == 2


def test_a_broken_precondition_stops_the_call_and_names_the_values():
    calls = []

    @require(lambda low, high: low <= high, "low must not be above high")
    def between(low: int, high: int, name: str = "range") -> None:
        calls.append(name)

    with pytest.raises(ContractError) as caught:
        between(3, high=1)

    assert calls == []
    assert str(caught.value).endswith("between is broken: low must not be above high (low=3, high=1)")


def test_a_contract_without_a_message_says_where_it_stands():
    @require(lambda x: x)
    def function(x: object) -> None: ...

    with pytest.raises(ContractError, match=r"<lambda> \(.*test_conditions\.py:\d+\) \(x=0\)"):
        function(0)


def test_a_callable_object_can_be_a_predicate():
    class AtMost:
        def __init__(self, limit: int) -> None:
            self.limit = limit

        def __call__(self, x: int) -> bool:
            return x <= self.limit

    @require(AtMost(3))
    def function(x: int) -> int:
        return x

    assert function(3) == 3
    with pytest.raises(ContractError, match="AtMost"):
        function(4)


def test_long_values_are_shortened():
    @require(lambda text: not text)
    def function(text: str) -> None: ...

    with pytest.raises(ContractError) as caught:
        function("x" * 10_000)

    assert len(str(caught.value)) < 500


def test_predicates_see_defaults_self_and_collected_arguments():
    seen = {}

    def look(self, b, rest, options) -> bool:
        seen.update(b=b, rest=rest, options=options)
        return isinstance(self, Thing)

    class Thing:
        @require(look)
        def method(self, a: int, b: int = 2, *rest: int, **options: int) -> None: ...

    Thing().method(1)
    assert seen == {"b": 2, "rest": (), "options": {}}

    Thing().method(1, 3, 4, c=5)
    assert seen == {"b": 3, "rest": (4,), "options": {"c": 5}}


def test_a_predicate_may_bring_values_of_its_own_as_defaults():
    @require(lambda x, limit=10: x < limit)
    def function(x: int) -> int:
        return x

    assert function(9) == 9
    with pytest.raises(ContractError):
        function(10)


def test_a_broken_postcondition_names_result_and_arguments():
    @ensure(lambda result, x: result >= x, "never less than it was given")
    def rounded(x: float) -> int:
        return int(x)

    assert rounded(2) == 2
    with pytest.raises(ContractError, match=re.escape("never less than it was given (result=2, x=2.5)")):
        rounded(2.5)


def test_a_postcondition_sees_what_the_call_did_to_its_arguments():
    @ensure(lambda items: items == sorted(items))
    def tidy(items: list[int], *, really: bool) -> None:
        if really:
            items.sort()

    tidy([2, 1], really=True)
    with pytest.raises(ContractError):
        tidy([2, 1], really=False)


def test_an_exception_passes_a_postcondition_unchanged():
    @ensure(lambda result: result)
    def fail() -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        fail()


def test_contracts_stack_and_leave_the_function_recognisable():
    @require(lambda x: x > 0, "positive")
    @require(lambda x: x < 10, "small")
    @ensure(lambda result: result % 2 == 0, "even")
    def double(x: int) -> int:
        """Twice as much."""
        return 2 * x

    assert double(3) == 6
    assert double.__name__ == "double"
    assert double.__doc__ == "Twice as much."
    assert list(inspect.signature(double).parameters) == ["x"]
    with pytest.raises(ContractError, match="positive"):
        double(-1)
    with pytest.raises(ContractError, match="small"):
        double(11)


def test_a_predicate_that_asks_for_what_is_not_there_is_refused_when_decorating():
    with pytest.raises(TypeError, match=r"precondition of .*function asks for `y`; it can see x"):

        @require(lambda y: y)
        def function(x: int) -> None: ...


def test_ensure_refuses_an_argument_called_result():
    with pytest.raises(TypeError, match="rename the argument"):

        @ensure(lambda result: result)
        def function(result: int) -> int:
            return result


def test_ensure_refuses_functions_whose_end_it_cannot_see():
    async def coroutine() -> None: ...

    def generator():
        yield 1

    for function in (coroutine, generator):
        with pytest.raises(TypeError, match="coroutine or a generator"):
            ensure(lambda result: result)(function)


def test_require_checks_a_generator_when_it_is_called_not_when_it_is_run():
    @require(lambda n: n >= 0)
    def count(n: int):
        yield from range(n)

    assert list(count(2)) == [0, 1]
    with pytest.raises(ContractError):
        count(-1)
