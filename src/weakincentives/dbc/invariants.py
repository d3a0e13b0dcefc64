"""`invariant`: what holds for every instance of a class whenever nobody is inside of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from weakincentives.dbc.conditions import violation_message
from weakincentives.dbc.switch import is_checking
from weakincentives.errors import ContractError

C = TypeVar("C")
P = ParamSpec("P")
R = TypeVar("R")

# A method may break the invariant for a moment and call its neighbours meanwhile, and a predicate may call methods:
# so only the outermost call into an instance checks.
_active_instances: ContextVar[frozenset[int]] = ContextVar("weakincentives_dbc_entered", default=frozenset())


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
                raise ContractError(
                    violation_message(f"invariant of {cls.__qualname__}", predicate, message, {"self": instance})
                )

        for name, method in checked_methods(cls):
            setattr(cls, name, check_after(method, check))
        return cls

    return decorate


def checked_methods(cls: type) -> list[tuple[str, Callable[..., object]]]:
    """`__init__`, also an inherited one, and the public methods that the class itself defines."""
    methods = [(name, member) for name, member in vars(cls).items() if inspect.isfunction(member)]
    public = [(name, method) for name, method in methods if not name.startswith("_")]
    # The one of `object` does nothing, and complains about arguments that __new__ took as soon as it is wrapped.
    created = [] if cls.__init__ is object.__init__ else [("__init__", cls.__init__)]
    return [*created, *public]


def check_after(method: Callable[Concatenate[C, P], R], check: Callable[[C], None]) -> Callable[Concatenate[C, P], R]:
    """The method, followed by the check unless a call further out will make it."""

    @wraps(method)
    def checked(self: C, /, *args: P.args, **kwargs: P.kwargs) -> R:
        entered = _active_instances.get()
        if id(self) in entered:
            return method(self, *args, **kwargs)
        token = _active_instances.set(entered | {id(self)})
        try:
            result = method(self, *args, **kwargs)
            check(self)
        finally:
            _active_instances.reset(token)
        return result

    return checked
