"""`require` and `ensure`: what must hold before a call, and what holds after it."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeAlias, TypeVar

from weakincentives.dbc.switch import is_checking
from weakincentives.errors import ContractError

P = ParamSpec("P")
R = TypeVar("R")

# Spelled out by length, because a type checker does not know what a lambda's arguments are where it reads `...`.
Predicate: TypeAlias = (
    Callable[[Any], object]
    | Callable[[Any, Any], object]
    | Callable[[Any, Any, Any], object]
    | Callable[[Any, Any, Any, Any], object]
)
"""Takes whichever of the call's arguments it names, and says whether all is well."""


def require(predicate: Predicate, message: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Before each call, `predicate` must hold. It names the arguments that it wants to see.

    >>> from weakincentives.dbc import checking
    >>> with checking():
    ...     @require(lambda amount: amount > 0, "amount must be positive")
    ...     def deposit(amount: int, into: str) -> str:
    ...         return f"{amount} into {into}"
    >>> deposit(3, into="savings")
    '3 into savings'
    >>> deposit(-3, into="savings")
    Traceback (most recent call last):
    weakincentives.errors.ContractError: precondition of deposit is broken: amount must be positive (amount=-3)
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if not is_checking():
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
    """After each call that returns, `predicate` must hold. It may name `result` and any of the arguments."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if not is_checking():
            return function
        reject_coroutines_and_generators("ensure", function)
        signature = inspect.signature(function)
        if "result" in signature.parameters:
            raise TypeError(
                f"{function.__qualname__} has an argument called `result`, which @ensure uses for what is returned; "
                f"rename the argument"
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
    """Where calling a function does not run it, there is nothing to check when the call returns."""
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(
            f"@{decorator} cannot see the end of {function.__qualname__}, which is a coroutine or a generator; "
            f"put it on a plain function"
        )


def make_check(
    kind: str,
    function: Callable[..., object],
    predicate: Callable[..., object],
    message: str | None,
    *,
    visible: Mapping[str, object] | set[str],
) -> Callable[[Mapping[str, object]], None]:
    """A check of `predicate` against the values of one call, of which it sees those that it names."""
    parameters = inspect.signature(predicate).parameters
    wanted = [name for name in parameters if name in visible]
    for name, parameter in parameters.items():
        if name not in visible and parameter.default is parameter.empty:
            raise TypeError(
                f"the {kind} of {function.__qualname__} asks for `{name}`; it can see {', '.join(sorted(visible))}"
            )

    def check(values: Mapping[str, object]) -> None:
        seen = {name: values[name] for name in wanted}
        if not predicate(**seen):
            raise ContractError(violation_message(f"{kind} of {function.__qualname__}", predicate, message, seen))

    return check


def violation_message(
    what: str, predicate: Callable[..., object], message: str | None, seen: Mapping[str, object]
) -> str:
    """The sentence that tells which contract is broken, and by which values."""
    values = ", ".join(f"{name}={reprlib.repr(value)}" for name, value in seen.items())
    return f"{what} is broken: {message or predicate_name(predicate)} ({values})"


def predicate_name(predicate: Callable[..., object]) -> str:
    """A name for a predicate that came without a message: its own, and for a lambda its line."""
    name = getattr(predicate, "__qualname__", type(predicate).__qualname__)
    code = getattr(predicate, "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code is not None else name
