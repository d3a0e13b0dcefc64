"""`require` and `ensure`: when they raise, which values predicates receive, and the messages."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import textwrap

import pytest

from weakincentives.dbc import ensure, invariant, pure, require
from weakincentives.dbc.conditions import ENABLING_VARIABLE, is_enabled
from weakincentives.errors import ContractError


@pytest.mark.parametrize("value, enabled", [(None, False), ("", False), ("0", False), ("1", True), ("yes", True)])
def test_environment_variable_enables_contracts(monkeypatch, value, enabled):
    if value is None:
        monkeypatch.delenv(ENABLING_VARIABLE)
    else:
        monkeypatch.setenv(ENABLING_VARIABLE, value)

    assert is_enabled() is enabled


def test_disabled_decorators_return_the_object_unchanged(monkeypatch):
    monkeypatch.setenv(ENABLING_VARIABLE, "0")

    def function(x: int) -> int:
        return x

    class Thing:
        def method(self) -> None: ...

    before = dict(vars(Thing))

    assert require(lambda x: x)(function) is function
    assert ensure(lambda result: result)(function) is function
    assert pure(function) is function
    assert invariant(lambda self: False)(Thing) is Thing
    assert dict(vars(Thing)) == before


def test_disabled_contracts_leave_no_wrappers_in_the_package():
    program = """
        from weakincentives.adapters.core import ProviderAdapter
        from weakincentives.adapters.tool_calls import run_tool
        from weakincentives.filesystem.paths import split
        from weakincentives.prompt import PromptTemplate, Tool
        from weakincentives.prompt.rendering import render

        functions = ProviderAdapter.evaluate, run_tool, split, render, PromptTemplate.__init__, Tool.__init__
        print(sum(hasattr(function, "__wrapped__") for function in functions))
    """
    counts = [
        int(subprocess.check_output([sys.executable, "-c", textwrap.dedent(program)], env={ENABLING_VARIABLE: value}))
        for value in ("0", "1")
    ]

    assert counts == [0, 6]


def test_variable_is_read_when_decorating_not_when_calling(monkeypatch):
    @require(lambda x: x > 0)
    def checked(x: int) -> int:
        return x

    monkeypatch.setenv(ENABLING_VARIABLE, "0")

    with pytest.raises(AssertionError):
        checked(-1)


def test_satisfied_precondition_does_nothing():
    @require(lambda x: x > 0)
    def half(x: float) -> float:
        return x / 2

    assert half(4) == 2
    assert half(x=4) == 2


def test_violated_precondition_prevents_the_call_and_names_the_values():
    calls = []

    @require(lambda low, high: low <= high, "low must not be above high")
    def between(low: int, high: int, name: str = "range") -> None:
        calls.append(name)

    with pytest.raises(ContractError) as caught:
        between(3, high=1)

    assert calls == []
    assert str(caught.value).endswith("between violated: low must not be above high (low=3, high=1)")


def test_contract_without_message_names_file_and_line():
    @require(lambda x: x)
    def function(x: object) -> None: ...

    with pytest.raises(ContractError, match=r"<lambda> \(.*test_conditions\.py:\d+\) \(x=0\)"):
        function(0)


def test_callable_object_as_predicate():
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


def test_long_values_are_truncated_in_the_message():
    @require(lambda text: not text)
    def function(text: str) -> None: ...

    with pytest.raises(ContractError) as caught:
        function("x" * 10_000)

    assert len(str(caught.value)) < 500


def test_predicate_receives_defaults_self_and_variadic_arguments():
    seen = {}

    def predicate(self, b, rest, options) -> bool:
        seen.update(b=b, rest=rest, options=options)
        return isinstance(self, Thing)

    class Thing:
        @require(predicate)
        def method(self, a: int, b: int = 2, *rest: int, **options: int) -> None: ...

    Thing().method(1)
    assert seen == {"b": 2, "rest": (), "options": {}}

    Thing().method(1, 3, 4, c=5)
    assert seen == {"b": 3, "rest": (4,), "options": {"c": 5}}


def test_predicate_parameters_with_defaults_need_no_argument():
    @require(lambda x, limit=10: x < limit)
    def function(x: int) -> int:
        return x

    assert function(9) == 9
    with pytest.raises(ContractError):
        function(10)


def test_violated_postcondition_names_result_and_arguments():
    @ensure(lambda result, x: result >= x, "never less than it was given")
    def rounded(x: float) -> int:
        return int(x)

    assert rounded(2) == 2
    with pytest.raises(ContractError, match=re.escape("never less than it was given (result=2, x=2.5)")):
        rounded(2.5)


def test_postcondition_receives_arguments_as_the_call_left_them():
    @ensure(lambda items: items == sorted(items))
    def tidy(items: list[int], *, really: bool) -> None:
        if really:
            items.sort()

    tidy([2, 1], really=True)
    with pytest.raises(ContractError):
        tidy([2, 1], really=False)


def test_exception_skips_the_postcondition():
    @ensure(lambda result: result)
    def fail() -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        fail()


def test_contracts_stack_and_keep_name_docstring_and_signature():
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


def test_predicate_with_unknown_parameter_is_rejected_when_decorating():
    with pytest.raises(TypeError, match=r"precondition of .*function names `y`; available are x"):

        @require(lambda y: y)
        def function(x: int) -> None: ...


def test_ensure_rejects_an_argument_called_result():
    with pytest.raises(TypeError, match="rename the argument"):

        @ensure(lambda result: result)
        def function(result: int) -> int:
            return result


def test_ensure_rejects_coroutines_and_generators():
    async def coroutine() -> None: ...

    def generator():
        yield 1

    for function in (coroutine, generator):
        with pytest.raises(TypeError, match="coroutine or a generator"):
            ensure(lambda result: result)(function)


def test_require_checks_a_generator_function_at_the_call():
    @require(lambda n: n >= 0)
    def count(n: int):
        yield from range(n)

    assert list(count(2)) == [0, 1]
    with pytest.raises(ContractError):
        count(-1)
