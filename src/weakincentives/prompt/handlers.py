"""Validation of tool handlers: the signature and annotations are checked when the tool is declared."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from weakincentives.errors import PromptValidationError
from weakincentives.prompt.tool_result import ToolResult

_POSITIONAL_KINDS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_UNIONS = (Union, UnionType)
_EXPECTED_SIGNATURE = "def handler(params: Params, *, context: ToolContext) -> ToolResult[Result]"


def check_handler(handler: Callable[..., Any], *, params_type: object, result_type: object, tool: str) -> None:
    """Raise if a handler cannot be called with params and context, or if its annotations contradict the tool."""
    params_name = _params_name(handler, tool)
    hints = _type_hints(handler, {_type_name(params_type): params_type, _type_name(result_type): result_type})
    declared = hints.get(params_name, params_type)
    if not _is_subtype(params_type, supertype=declared):
        raise _handler_error(tool, f"takes {_type_name(declared)}, but the tool's params are {_type_name(params_type)}")
    returned = hints.get("return", ToolResult[Any])
    if get_origin(returned) is not ToolResult and returned is not ToolResult:
        raise _handler_error(tool, f"returns {_type_name(returned)}, not ToolResult[{_type_name(result_type)}]")
    if get_origin(returned) is ToolResult:
        inner = get_args(returned)[0]
        if not _is_subtype(inner, supertype=result_type):
            raise _handler_error(
                tool, f"returns ToolResult[{_type_name(inner)}], not ToolResult[{_type_name(result_type)}]"
            )


def handler_types(handler: Callable[..., Any], *, tool: str) -> tuple[Any, Any]:
    """The params and result types from a handler's annotations."""
    params_name = _params_name(handler, tool)
    hints = _type_hints(handler, {})
    returned = hints.get("return")
    if params_name not in hints or get_origin(returned) is not ToolResult:
        raise _handler_error(
            tool,
            "has no annotations for its types, or they cannot be resolved from its module; "
            "annotate it with module-level types, or write Tool[Params, Result]",
        )
    return hints[params_name], get_args(returned)[0]


def _params_name(handler: Callable[..., Any], tool: str) -> str:
    if not callable(handler):
        raise _handler_error(tool, "is not callable")
    if inspect.iscoroutinefunction(_unwrap(handler)):
        raise _handler_error(tool, "is async, but tools run synchronously; wrap it with asyncio.run")
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError) as error:
        raise _handler_error(tool, "has no signature to check; wrap it in a function that has one") from error
    positional = [parameter for parameter in parameters if parameter.kind in _POSITIONAL_KINDS]
    context = [p for p in parameters if p.name == "context" and p.kind is inspect.Parameter.KEYWORD_ONLY]
    accepts_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    if len(positional) != 1 or not (context or accepts_any):
        raise _handler_error(tool, "must take one positional parameter and a keyword-only `context`")
    if extra := [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty and p not in context]:
        raise _handler_error(
            tool, f"has a required parameter {extra[0]!r}, which is never passed; bind it with functools.partial"
        )
    return positional[0].name


def _type_hints(handler: Callable[..., Any], known_types: Mapping[str, object]) -> dict[str, Any]:
    """Resolved annotations; empty if they cannot be resolved, such as names of types defined inside a function."""
    try:
        return get_type_hints(_unwrap(handler), localns={**known_types, "ToolResult": ToolResult})
    except (NameError, TypeError):
        return {}


def _unwrap(handler: Callable[..., Any]) -> Callable[..., Any]:
    """The underlying function of a partial, a method or a callable instance."""
    while isinstance(handler, partial):
        handler = cast("partial[Any]", handler).func
    function = handler if inspect.isroutine(handler) else getattr(handler, "__call__", handler)  # noqa: B004 - for its annotations, not to test callability
    return getattr(function, "__func__", function)


def _is_subtype(candidate: Any, *, supertype: Any) -> bool:  # noqa: ANN401 - any type form
    """Whether `given` is a subtype of `of`, as far as that is known at run time."""
    if candidate == supertype or Any in (candidate, supertype):
        return True
    if get_origin(candidate) in _UNIONS:
        return all(_is_subtype(member, supertype=supertype) for member in get_args(candidate))
    if get_origin(supertype) in _UNIONS:
        return any(_is_subtype(candidate, supertype=member) for member in get_args(supertype))
    return (
        isinstance(candidate, type)
        and isinstance(supertype, type)
        and (getattr(supertype, "_is_protocol", False) or issubclass(candidate, supertype))
    )


def _handler_error(tool: str, problem: str) -> PromptValidationError:
    return PromptValidationError(f"the handler of tool {tool!r} {problem}. Expected: {_EXPECTED_SIGNATURE}")


def _type_name(value: object) -> str:
    return value.__name__ if isinstance(value, type) else str(value)
