"""`ToolResult`: text for the model and a typed value for the program."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar, cast, overload

from weakincentives.errors import SerdeError
from weakincentives.prompt._types import ToolRenderableResult
from weakincentives.serde import dump_json

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)


class _OkConstructor(Protocol):
    def __call__(self, value: T, /, message: str = "") -> ToolResult[T]: ...


class _SuccessDescriptor:
    """Descriptor: `.success` is the flag on an instance and a constructor on the class."""

    @overload
    def __get__(self, instance: None, owner: type[object]) -> _OkConstructor: ...
    @overload
    def __get__(self, instance: ToolResult[Any], owner: type[object]) -> bool: ...
    def __get__(self, instance: ToolResult[Any] | None, owner: type[object]) -> _OkConstructor | bool:
        return ToolResult.ok if instance is None else instance.succeeded


class ToolResult(Generic[R_co]):
    """The result of a tool call, created with `ToolResult.ok(value)` or `ToolResult.error(message)`.

    The model receives `render()`. After a failed result, session and resources are rolled back to their state before
    the call.
    """

    # Not a dataclass: a frozen dataclass with slots breaks `ToolResult[X](…)` on some Python versions, and its fields
    # could not include the two meanings of `success`.
    __slots__ = ("message", "succeeded", "value")
    message: str
    value: R_co | None
    succeeded: bool

    def __init__(self, message: str, value: R_co | None = None, success: bool = True) -> None:  # noqa: FBT001, FBT002 - the documented signature
        object.__setattr__(self, "message", message)
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "succeeded", success)

    success = _SuccessDescriptor()

    @staticmethod
    def ok(value: T, /, message: str = "") -> ToolResult[T]:
        """A successful result; without a message, the model receives the rendered value."""
        return ToolResult(message, value)

    @staticmethod
    def error(message: str) -> ToolResult[Any]:
        """A failed result; the message should say how the model can correct the call."""
        return ToolResult(message, None, success=False)

    def render(self) -> str:
        """The text for the model: the message, then the value."""
        parts = (self.message, _render_value(self.value))
        text = "\n\n".join(dict.fromkeys(part for part in parts if part))
        return text.encode(errors="backslashreplace").decode()  # an unpaired surrogate cannot be encoded

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"ToolResult is immutable: cannot set {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"ToolResult is immutable: cannot delete {name}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ToolResult):
            return NotImplemented
        result = cast("ToolResult[object]", other)
        return (self.message, self.value, self.succeeded) == (result.message, result.value, result.succeeded)

    def __hash__(self) -> int:
        return hash((self.message, self.succeeded))

    def __reduce__(self) -> tuple[type[ToolResult[Any]], tuple[str, object, bool]]:
        return ToolResult, (self.message, self.value, self.succeeded)

    def __repr__(self) -> str:
        return f"ToolResult(message={self.message!r}, value={self.value!r}, success={self.succeeded!r})"


def _render_value(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, ToolRenderableResult) and callable(value.render):  # `render` may also be a field
        return value.render()
    try:
        return dump_json(value)
    except SerdeError:
        return repr(value)
