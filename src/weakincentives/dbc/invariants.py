"""`invariant`: what holds for every instance of a class whenever nobody is inside of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from weakincentives.dbc.conditions import broken
from weakincentives.dbc.switch import is_checking
from weakincentives.errors import ContractError

C = TypeVar("C")
P = ParamSpec("P")
R = TypeVar("R")

# A method may break the invariant for a moment and call its neighbours meanwhile, and a predicate may call methods:
# so only the outermost call into an instance checks.
_entered: ContextVar[frozenset[int]] = ContextVar("weakincentives_dbc_entered", default=frozenset())


def invariant(predicate: Callable[[Any], object], message: str | None = None) -> Callable[[type[C]], type[C]]:
    """After `__init__` and after each public method that the class defines, `predicate(instance)` must hold.

    It goes outermost, above `@dataclass`. A subclass inherits the checked methods;
    those that it overrides or adds are checked when it is decorated itself.
    """

    def decorate(cls: type[C]) -> type[C]:
        if not is_checking():
            return cls

        def check(instance: object) -> None:
            if not predicate(instance):
                raise ContractError(broken(f"invariant of {cls.__qualname__}", predicate, message, {"self": instance}))

        for name, method in methods_that_end_outside(cls):
            setattr(cls, name, checked_after(method, check))
        return cls

    return decorate


def methods_that_end_outside(cls: type) -> list[tuple[str, Callable[..., object]]]:
    """`__init__`, also an inherited one, and the public methods that the class itself defines."""
    methods = [(name, member) for name, member in vars(cls).items() if inspect.isfunction(member)]
    public = [(name, method) for name, method in methods if not name.startswith("_")]
    # The one of `object` does nothing, and complains about arguments that __new__ took as soon as it is wrapped.
    created = [] if cls.__init__ is object.__init__ else [("__init__", cls.__init__)]
    return [*created, *public]


def checked_after(method: Callable[Concatenate[C, P], R], check: Callable[[C], None]) -> Callable[Concatenate[C, P], R]:
    """The method, followed by the check unless a call further out will make it."""

    @wraps(method)
    def checked(self: C, /, *args: P.args, **kwargs: P.kwargs) -> R:
        entered = _entered.get()
        if id(self) in entered:
            return method(self, *args, **kwargs)
        token = _entered.set(entered | {id(self)})
        try:
            result = method(self, *args, **kwargs)
            check(self)
        finally:
            _entered.reset(token)
        return result

    return checked
