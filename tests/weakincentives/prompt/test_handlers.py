from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import pytest

from weakincentives.errors import PromptValidationError
from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.prompt.handlers import check_handler, handler_types

if TYPE_CHECKING:
    from weakincentives.budget import Budget as OnlyForTheTypeChecker

T = TypeVar("T")


@dataclass
class Params:
    text: str = ""


@dataclass
class MoreParams(Params):
    more: str = ""


@dataclass
class Result:
    text: str = ""


@dataclass
class MoreResult(Result):
    more: str = ""


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: list[T]


class Renders(Protocol):
    def render(self) -> str: ...


def function(params: Params, *, context: ToolContext) -> ToolResult[Result]:
    _ = params, context
    return ToolResult.ok(Result())


def configured(prefix: str, params: Params, *, context: ToolContext, suffix: str) -> ToolResult[Result]:
    _ = prefix, params, context, suffix
    return ToolResult.ok(Result())


@functools.wraps(function)
def decorated(*args: Any, **kwargs: Any) -> ToolResult[Result]:
    return function(*args, **kwargs)


class Worker:
    def __call__(self, params: Params, *, context: ToolContext) -> ToolResult[Result]:
        return function(params, context=context)

    def method(self, params: Params, *, context: ToolContext) -> ToolResult[Result]:
        return function(params, context=context)

    @classmethod
    def of_class(cls, params: Params, *, context: ToolContext) -> ToolResult[Result]:
        return function(params, context=context)

    @staticmethod
    def static(params: Params, *, context: ToolContext) -> ToolResult[Result]:
        return function(params, context=context)


ANNOTATED: dict[str, Callable[..., Any]] = {
    "function": function,
    "decorated function": decorated,
    "method": Worker().method,
    "class method": Worker.of_class,
    "static method": Worker.static,
    "instance with __call__": Worker(),
    "partial": functools.partial(configured, "a", suffix="b"),
    "partial of a partial of a method": functools.partial(functools.partial(Worker().method)),
}


def check(handler: Callable[..., Any], params_type: object = Params, result_type: object = Result) -> None:
    check_handler(handler, params_type=params_type, result_type=result_type, tool="it")


# ── Valid handlers ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("handler", ANNOTATED.values(), ids=ANNOTATED)
def test_any_callable_can_be_a_handler(handler):
    check(handler)

    assert handler_types(handler, tool="it") == (Params, Result)


@pytest.mark.parametrize(
    "handler",
    [
        lambda params, *, context: ToolResult.ok(Result()),
        lambda params, **rest: ToolResult.ok(Result()),
        lambda params, /, *, context, more=1: ToolResult.ok(Result()),
    ],
    ids=["lambda", "swallows the context", "more with a default"],
)
def test_annotations_are_optional_if_the_tool_has_types(handler):
    check(handler)


def test_none_as_params_and_result():
    def nothing(params: None, *, context: ToolContext) -> ToolResult[None]:
        return ToolResult.ok(None)

    check(nothing, type(None), type(None))

    assert handler_types(nothing, tool="it") == (type(None), type(None))


def test_handler_may_have_wider_params_and_a_narrower_result():
    def broad(params: Params, *, context: ToolContext) -> ToolResult[MoreResult]:
        return ToolResult.ok(MoreResult())

    def any_params(params: Any, *, context: ToolContext) -> ToolResult[Any]:
        return ToolResult.ok(None)

    check(broad, MoreParams, Result)
    check(broad, Params, Result | None)
    check(broad, Params, Renders)
    check(any_params)


def test_generic_params_are_compared_including_their_arguments():
    def numbers(params: Page[int], *, context: ToolContext) -> ToolResult[Page[str]]:
        return ToolResult.ok(Page([""]))

    check(numbers, Page[int], Page[str])
    with pytest.raises(PromptValidationError, match=r"takes .*Page\[int\], but the tool's params are .*Page\[str\]"):
        check(numbers, Page[str], Page[str])


def test_unparametrised_tool_result_annotation():
    def bare(params: Params, *, context: ToolContext) -> ToolResult:
        return ToolResult.ok(Result())

    check(bare)


# ── Invalid handlers ──────────────────────────────────────────────────────────────────────────────────────────────────


async def coroutine(params: Params, *, context: ToolContext) -> ToolResult[Result]:
    return function(params, context=context)


class AsyncCallable:
    async def __call__(self, params: Params, *, context: ToolContext) -> ToolResult[Result]:
        return function(params, context=context)


def other_params(params: Result, *, context: ToolContext) -> ToolResult[Result]:
    raise NotImplementedError


def narrow_params(params: MoreParams, *, context: ToolContext) -> ToolResult[Result]:
    raise NotImplementedError


def other_result(params: Params, *, context: ToolContext) -> ToolResult[Params]:
    raise NotImplementedError


def wide_result(params: Params, *, context: ToolContext) -> ToolResult[Result | None]:
    raise NotImplementedError


def no_tool_result(params: Params, *, context: ToolContext) -> Result:
    raise NotImplementedError


REFUSED: dict[str, tuple[Any, str]] = {
    "not callable": (3, "is not callable"),
    "async": (coroutine, "is async"),
    "async instance": (AsyncCallable(), "is async"),
    "async in a partial": (functools.partial(coroutine), "is async"),
    "no signature": (max, "has no signature"),
    "no context": (lambda params: None, "keyword-only `context`"),
    "positional context": (lambda params, context: None, "keyword-only `context`"),
    "no params": (lambda *, context: None, "one positional parameter"),
    "two params": (lambda one, two, *, context: None, "one positional parameter"),
    "unbound method": (Worker.method, "one positional parameter"),
    "something else to give": (functools.partial(configured, "a"), "has a required parameter 'suffix'"),
    "other params": (other_params, "takes Result, but the tool's params are Params"),
    "narrower params": (narrow_params, "takes MoreParams, but the tool's params are Params"),
    "other result": (other_result, r"returns ToolResult\[Params\], not ToolResult\[Result\]"),
    "wider result": (wide_result, r"returns ToolResult\[.*Result \| None\], not ToolResult\[Result\]"),
    "no ToolResult": (no_tool_result, r"returns Result, not ToolResult\[Result\]"),
}


@pytest.mark.parametrize("handler, why", REFUSED.values(), ids=REFUSED)
def test_invalid_handlers_are_rejected(handler, why):
    with pytest.raises(PromptValidationError, match=rf"the handler of tool 'it' .*{why}.* Expected: def handler\("):
        check(handler)


# ── String annotations ────────────────────────────────────────────────────────────────────────────────────────────────


def test_local_types_are_resolved_through_the_tools_types():
    @dataclass
    class LocalParams:
        text: str

    def local(params: LocalParams, *, context: ToolContext) -> ToolResult[Result]:
        return ToolResult.ok(Result(params.text))

    check(local, LocalParams, Result)
    with pytest.raises(PromptValidationError, match=r"returns ToolResult\[Result\], not ToolResult\[Params\]"):
        check(local, LocalParams, Params)


def test_unresolvable_annotations_are_ignored():
    def hidden(params: Params, *, context: OnlyForTheTypeChecker) -> ToolResult[Result]:
        return ToolResult.ok(Result())

    check(hidden)


def test_tool_without_types_needs_an_annotated_handler():
    @dataclass
    class LocalParams:
        text: str

    def local(params: LocalParams, *, context: ToolContext) -> ToolResult[Result]:
        return ToolResult.ok(Result(params.text))

    unannotated: Any = lambda params, *, context: None  # noqa: E731 - a name for the type checker
    for handler in (local, unannotated):
        with pytest.raises(PromptValidationError, match=r"no annotations .* or they cannot be resolved"):
            Tool(name="it", description="It.", handler=handler)
