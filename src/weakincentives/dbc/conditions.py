"""Preconditions and postconditions of functions: `require` and `ensure`."""

from __future__ import annotations

import inspect
import os
import reprlib
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeAlias, TypeVar

from weakincentives.errors import ContractError

ENABLING_VARIABLE = "WEAKINCENTIVES_DBC"

P = ParamSpec("P")
R = TypeVar("R")

# One alternative per number of arguments: with `Callable[..., object]`, the arguments of a lambda have no known type.
Predicate: TypeAlias = (
    Callable[[Any], object]
    | Callable[[Any, Any], object]
    | Callable[[Any, Any, Any], object]
    | Callable[[Any, Any, Any, Any], object]
)
"""Takes those of the call's arguments that it names; the contract holds if it returns a true value."""


def is_enabled() -> bool:
    """Whether contracts are enabled: WEAKINCENTIVES_DBC is set, and neither empty nor "0"."""
    return os.environ.get(ENABLING_VARIABLE, "0") not in {"", "0"}


def require(predicate: Predicate, message: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Precondition: `predicate` must hold before each call. Its parameters name the arguments that it receives.

    >>> import os
    >>> os.environ["WEAKINCENTIVES_DBC"] = "1"  # in a program, set it before anything is imported
    >>> @require(lambda amount: amount > 0, "amount must be positive")
    ... def deposit(amount: int, into: str) -> str:
    ...     return f"{amount} into {into}"
    >>> deposit(3, into="savings")
    '3 into savings'
    >>> deposit(-3, into="savings")
    Traceback (most recent call last):
    weakincentives.errors.ContractError: precondition of deposit violated: amount must be positive (amount=-3)
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if not is_enabled():
            return function
        signature = inspect.signature(function)
        check = make_check("precondition", function, predicate, message, visible=signature.parameters)

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            check(bind_arguments(signature, *args, **kwargs))
            return function(*args, **kwargs)

        return checked

    return decorate


def ensure(predicate: Predicate, message: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Postcondition: `predicate` must hold after each call that returns. It may name `result` and any argument."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if not is_enabled():
            return function
        reject_coroutines_and_generators("ensure", function)
        signature = inspect.signature(function)
        if "result" in signature.parameters:
            raise TypeError(
                f"{function.__qualname__} has an argument called `result`, which @ensure reserves "
                f"for the return value; rename the argument"
            )
        check = make_check("postcondition", function, predicate, message, visible={*signature.parameters, "result"})

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            result = function(*args, **kwargs)
            check({**bind_arguments(signature, *args, **kwargs), "result": result})
            return result

        return checked

    return decorate


def bind_arguments(signature: inspect.Signature, *args: object, **kwargs: object) -> Mapping[str, object]:
    """The arguments of a call by name, defaults included."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def reject_coroutines_and_generators(decorator: str, function: Callable[..., object]) -> None:
    """Reject functions whose body has not run when the call returns."""
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(
            f"@{decorator} cannot check {function.__qualname__}: it is a coroutine or a generator; "
            f"decorate a plain function"
        )


def make_check(
    kind: str,
    function: Callable[..., object],
    predicate: Callable[..., object],
    message: str | None,
    *,
    visible: Mapping[str, object] | set[str],
) -> Callable[[Mapping[str, object]], None]:
    """Build the check of `predicate`; it receives those of the `visible` values that it names."""
    parameters = inspect.signature(predicate).parameters
    names = [name for name in parameters if name in visible]
    for name, parameter in parameters.items():
        if name not in visible and parameter.default is parameter.empty:
            raise TypeError(
                f"the {kind} of {function.__qualname__} names `{name}`; available are {', '.join(sorted(visible))}"
            )

    def check(values: Mapping[str, object]) -> None:
        passed = {name: values[name] for name in names}
        if not predicate(**passed):
            raise ContractError(violation_message(f"{kind} of {function.__qualname__}", predicate, message, passed))

    return check


def violation_message(
    contract: str, predicate: Callable[..., object], message: str | None, values: Mapping[str, object]
) -> str:
    """The message of a `ContractError`: the violated contract and the values that violate it."""
    shown = ", ".join(f"{name}={reprlib.repr(value)}" for name, value in values.items())
    return f"{contract} violated: {message or predicate_name(predicate)} ({shown})"


def predicate_name(predicate: Callable[..., object]) -> str:
    """The name of a predicate, with file and line if it is a Python function."""
    name = getattr(predicate, "__qualname__", type(predicate).__qualname__)
    code = getattr(predicate, "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code is not None else name
