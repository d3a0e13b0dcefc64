"""Generic classes that know their type arguments while they are being built."""

from __future__ import annotations

import types
from functools import cache
from typing import Any, ClassVar, TypeVar, cast


class Parametric:
    """Makes `Tool[Params, Result]` a real class that carries `type_arguments`.

    `typing` tells an instance its arguments only after `__init__`, which is too late
    to check them there. So subscribing with concrete types gives a subclass, always
    the same one. Subscribing with type variables stays what `typing` makes of it.
    """

    type_arguments: ClassVar[tuple[Any, ...]] = ()

    def __class_getitem__(cls, arguments: Any) -> Any:  # noqa: ANN401 - typing's own signature
        alias = cast("Any", super()).__class_getitem__(arguments)
        given = cast("tuple[Any, ...]", arguments if isinstance(arguments, tuple) else (arguments,))
        if any(isinstance(argument, TypeVar) or getattr(argument, "__parameters__", ()) for argument in given):
            return alias
        return _specialize(cls, alias.__args__)


@cache
def _specialize(base: type[Parametric], arguments: tuple[Any, ...]) -> type[Parametric]:
    names = ", ".join(getattr(argument, "__name__", str(argument)) for argument in arguments)

    def fill(namespace: dict[str, Any]) -> None:
        namespace["type_arguments"] = arguments
        namespace["__module__"] = base.__module__
        namespace["__qualname__"] = f"{base.__qualname__}[{names}]"
        namespace["__doc__"] = base.__doc__

    return types.new_class(f"{base.__name__}[{names}]", (base,), {}, fill)
