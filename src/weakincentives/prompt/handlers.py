"""Whether a function can be a tool's handler, found out when the tool is declared."""

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
    """Refuse a handler that could not be called, or whose annotations say something else than the tool."""
    params_name = _params_name(handler, tool)
    hints = _type_hints(handler, {_type_name(params_type): params_type, _type_name(result_type): result_type})
    declared = hints.get(params_name, params_type)
    if not _is_subtype(params_type, of=declared):
        raise _handler_error(tool, f"takes {_type_name(declared)}, but the tool's params are {_type_name(params_type)}")
    returned = hints.get("return", ToolResult[Any])
    if get_origin(returned) is not ToolResult and returned is not ToolResult:
        raise _handler_error(tool, f"returns {_type_name(returned)}, not ToolResult[{_type_name(result_type)}]")
    if get_origin(returned) is ToolResult:
        inner = get_args(returned)[0]
        if not _is_subtype(inner, of=result_type):
            raise _handler_error(
                tool, f"returns ToolResult[{_type_name(inner)}], not ToolResult[{_type_name(result_type)}]"
            )


def handler_types(handler: Callable[..., Any], *, tool: str) -> tuple[Any, Any]:
    """The params and result types that a handler's annotations name."""
    params_name = _params_name(handler, tool)
    hints = _type_hints(handler, {})
    returned = hints.get("return")
    if params_name not in hints or get_origin(returned) is not ToolResult:
        raise _handler_error(
            tool,
            "has no annotations to take the types from, or they name what cannot be found from its module; "
            "annotate it with types of module level, or write Tool[Params, Result]",
        )
    return hints[params_name], get_args(returned)[0]


def _params_name(handler: Callable[..., Any], tool: str) -> str:
    if not callable(handler):
        raise _handler_error(tool, "is not callable")
    if inspect.iscoroutinefunction(_unwrap(handler)):
        raise _handler_error(tool, "is async; tools run synchronously, so wrap it with asyncio.run")
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError) as error:
        raise _handler_error(tool, "has no signature to check; wrap it in a function that has one") from error
    positional = [parameter for parameter in parameters if parameter.kind in _POSITIONAL_KINDS]
    context = [p for p in parameters if p.name == "context" and p.kind is inspect.Parameter.KEYWORD_ONLY]
    swallows = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    if len(positional) != 1 or not (context or swallows):
        raise _handler_error(tool, "must take one positional parameter and a keyword-only `context`")
    if left := [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty and p not in context]:
        raise _handler_error(tool, f"needs {left[0]!r} too, which nobody gives it; bind it with functools.partial")
    return positional[0].name


def _type_hints(handler: Callable[..., Any], known_types: Mapping[str, object]) -> dict[str, Any]:
    """Annotations, resolved as far as they can be: types made inside a function are not found by name."""
    try:
        return get_type_hints(_unwrap(handler), localns={**known_types, "ToolResult": ToolResult})
    except (NameError, TypeError):
        return {}


def _unwrap(handler: Callable[..., Any]) -> Callable[..., Any]:
    """The function that does the work: of a partial, a method, or an instance that can be called."""
    while isinstance(handler, partial):
        handler = cast("partial[Any]", handler).func
    function = handler if inspect.isroutine(handler) else getattr(handler, "__call__", handler)  # noqa: B004 - its annotations, not a test
    return getattr(function, "__func__", function)


def _is_subtype(given: Any, *, of: Any) -> bool:  # noqa: ANN401 - any type form
    """Whether every value of the one type is one of the other, as far as can be told at run time."""
    if given == of or Any in (given, of):
        return True
    if get_origin(given) in _UNIONS:
        return all(_is_subtype(member, of=of) for member in get_args(given))
    if get_origin(of) in _UNIONS:
        return any(_is_subtype(given, of=member) for member in get_args(of))
    return (
        isinstance(given, type)
        and isinstance(of, type)
        and (getattr(of, "_is_protocol", False) or issubclass(given, of))
    )


def _handler_error(tool: str, problem: str) -> PromptValidationError:
    return PromptValidationError(f"the handler of tool {tool!r} {problem}. Expected: {_EXPECTED_SIGNATURE}")


def _type_name(of: object) -> str:
    return of.__name__ if isinstance(of, type) else str(of)
