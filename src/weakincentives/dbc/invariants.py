"""Class invariants: `invariant` checks a predicate after `__init__` and after every public method."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from weakincentives.dbc.conditions import is_enabled, violation_message
from weakincentives.errors import ContractError

C = TypeVar("C")
P = ParamSpec("P")
R = TypeVar("R")

# Ids of the instances with a checked call on the stack. Only the outermost call checks: a method may violate the
# invariant temporarily and call other methods meanwhile, and the predicate may call methods too.
_active_instances: ContextVar[frozenset[int]] = ContextVar("weakincentives_dbc_entered", default=frozenset())


def invariant(predicate: Callable[[Any], object], message: str | None = None) -> Callable[[type[C]], type[C]]:
    """Class invariant: `predicate(instance)` must hold after `__init__` and after each public method of the class.

    Place it above `@dataclass`. A subclass inherits the checked methods; the methods that it overrides or adds are
    checked only if the subclass is decorated too.
    """

    def decorate(cls: type[C]) -> type[C]:
        if not is_enabled():
            return cls

        def check(instance: object) -> None:
            if not predicate(instance):
                contract = f"invariant of {cls.__qualname__}"
                raise ContractError(violation_message(contract, predicate, message, {"self": instance}))

        for name, method in checked_methods(cls):
            setattr(cls, name, check_after(method, check))
        return cls

    return decorate


def checked_methods(cls: type) -> list[tuple[str, Callable[..., object]]]:
    """`__init__`, also if inherited, and the public methods that the class itself defines."""
    methods = [(name, member) for name, member in vars(cls).items() if inspect.isfunction(member)]
    public = [(name, method) for name, method in methods if not name.startswith("_")]
    # `object.__init__` does nothing, and once wrapped it rejects the arguments that `__new__` accepted.
    init = [] if cls.__init__ is object.__init__ else [("__init__", cls.__init__)]
    return [*init, *public]


def check_after(method: Callable[Concatenate[C, P], R], check: Callable[[C], None]) -> Callable[Concatenate[C, P], R]:
    """The method followed by the check, unless an outer call on the same instance checks."""

    @wraps(method)
    def checked(self: C, /, *args: P.args, **kwargs: P.kwargs) -> R:
        active = _active_instances.get()
        if id(self) in active:
            return method(self, *args, **kwargs)
        token = _active_instances.set(active | {id(self)})
        try:
            result = method(self, *args, **kwargs)
            check(self)
        finally:
            _active_instances.reset(token)
        return result

    return checked
