"""Generic classes whose type arguments are available at run time, inside `__init__`."""

from __future__ import annotations

import types
from functools import cache
from typing import Any, ClassVar, TypeVar, cast, get_origin


class Parametric:
    """Makes `Tool[Params, Result]` a subclass with `type_arguments`, in terms of the first class of the hierarchy.

    `typing` sets `__orig_class__` only after `__init__`, too late to validate the arguments there. So subscripting with
    concrete types creates a subclass, which is cached. Subscripting with type variables returns `typing`'s alias.
    """

    type_arguments: ClassVar[tuple[Any, ...]] = ()

    def __class_getitem__(cls, arguments: Any) -> Any:  # noqa: ANN401 - typing's own signature
        alias = cast("Any", super()).__class_getitem__(arguments)
        provided = cast("tuple[Any, ...]", arguments if isinstance(arguments, tuple) else (arguments,))
        if any(isinstance(argument, TypeVar) or getattr(argument, "__parameters__", ()) for argument in provided):
            return alias
        return _specialize(cls, alias.__args__)


def _base_arguments(cls: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:  # noqa: ANN401 - typing has no type for it
    """Map a subclass's arguments to those of the first class of the hierarchy: Some[R] may be a Tool[Params, R]."""
    provided = dict(zip(cls.__parameters__, arguments, strict=True))
    bases: tuple[Any, ...] = cast("Any", vars(cls)).get("__orig_bases__", ())
    for base in bases:
        origin = get_origin(base)
        if isinstance(origin, type) and issubclass(origin, Parametric):
            return _base_arguments(origin, base[tuple(provided[name] for name in base.__parameters__)].__args__)
    return cls.type_arguments or arguments


@cache
def _specialize(base: type[Parametric], arguments: tuple[Any, ...]) -> type[Parametric]:
    names = ", ".join(getattr(argument, "__name__", str(argument)) for argument in arguments)

    def fill(namespace: dict[str, Any]) -> None:
        namespace["type_arguments"] = _base_arguments(base, arguments)
        namespace["__module__"] = base.__module__
        namespace["__qualname__"] = f"{base.__qualname__}[{names}]"
        namespace["__doc__"] = base.__doc__

    return types.new_class(f"{base.__name__}[{names}]", (base,), {}, fill)
