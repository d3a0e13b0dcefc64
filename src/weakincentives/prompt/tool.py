"""Tools: `Tool` runs on the client, `NativeTool` at the provider, `ProviderTool` at the provider with a client hook."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypeVar, Union, cast, get_args, get_origin

from weakincentives.dbc import invariant
from weakincentives.errors import PromptValidationError, SchemaError
from weakincentives.filesystem import Filesystem
from weakincentives.prompt._types import SessionProtocol, ToolRenderableResult
from weakincentives.prompt.generics import Parametric
from weakincentives.prompt.handlers import check_handler, handler_types
from weakincentives.prompt.native import NativeDeclaration
from weakincentives.prompt.tool_result import ToolResult
from weakincentives.resources import ResourceRegistry
from weakincentives.serde import dump_json, schema, strict_schema

if TYPE_CHECKING:
    from weakincentives.budget import BudgetTracker
    from weakincentives.deadlines import Deadline
    from weakincentives.prompt.rendering import RenderedPrompt
    from weakincentives.prompt.template import Prompt

P = TypeVar("P")
R = TypeVar("R")
C = TypeVar("C")
P_contra = TypeVar("P_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)

_NAME_RE = re.compile(r"[a-z0-9_-]{1,64}")
_UNIONS = (Union, UnionType)
_JSON_TYPES = (str, int, float, bool, dict, list, tuple, Mapping, type(None))


@dataclass(frozen=True, slots=True)
class NamedTool:
    """Tool choice: the model must call this tool in its next reply."""

    name: str


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | NamedTool
"""Whether the model may, must or must not call tools. "required" and a named tool become "auto" once satisfied."""

PLAIN_TOOL_CHOICES = ("auto", "none", "required")


@dataclass(frozen=True)
class ToolContext:
    """The context that a tool handler receives beside its parameters."""

    prompt: Prompt[Any]
    rendered_prompt: RenderedPrompt[Any]
    adapter: Any
    session: SessionProtocol
    deadline: Deadline | None = None
    budget_tracker: BudgetTracker | None = None
    resources: ResourceRegistry = field(default_factory=ResourceRegistry)

    @property
    def filesystem(self) -> Filesystem:
        """The `Filesystem` in `resources`; an error if there is none."""
        return self.resources.get(Filesystem)


class ToolHandler(Protocol[P_contra, R_co]):
    """A function that runs a tool."""

    def __call__(self, params: P_contra, /, *, context: ToolContext) -> ToolResult[R_co]: ...


@dataclass(frozen=True)
class ToolExample(Generic[P, R]):
    """An example call, which is added to the description of the tool."""

    description: str
    input: P
    output: R


@dataclass(frozen=True)
class ToolSpec:
    """The function declaration of a client-run tool, with the JSON schema of its parameters."""

    name: str
    description: str
    parameters: dict[str, Any]
    strict: bool


def _has_executor(tool: Tool[Any, Any]) -> bool:
    return tool.handler is not None or tool.declaration() is not None


_runs_somewhere = invariant(_has_executor, "a tool has a handler, or a declaration that the provider runs")


@_runs_somewhere
@dataclass(frozen=True, kw_only=True)
class Tool(Parametric, Generic[P, R]):
    """A tool that the client runs: `Tool[Params, Result](name=…, description=…, handler=…)`."""

    name: str
    description: str
    handler: ToolHandler[P, R] | None = None
    examples: Sequence[ToolExample[P, R]] = field(default=(), hash=False)
    accepts_overrides: bool = True
    params_type: type[Any] = field(init=False, repr=False)
    result_type: Any = field(init=False, repr=False)
    param_descriptions: Mapping[str, str] = field(init=False, repr=False, hash=False, default_factory=dict[str, str])

    def __post_init__(self) -> None:
        object.__setattr__(self, "examples", tuple(self.examples))
        params_type, result_type = self._types()
        object.__setattr__(self, "params_type", params_type)
        object.__setattr__(self, "result_type", result_type)
        self._check()

    def _types(self) -> tuple[Any, Any]:
        """Params and result type from `Tool[P, R]`, else from the handler's annotations."""
        if self.type_arguments:
            return self.type_arguments[0], self.type_arguments[1]
        if self.handler is not None:
            return handler_types(self.handler, tool=self.name)
        raise PromptValidationError(
            f"{type(self).__name__} {self.name!r} needs its types: {type(self).__name__}[Params, Result](…)"
        )

    def _check(self) -> None:
        if not _NAME_RE.fullmatch(self.name):
            raise PromptValidationError(
                f"tool name {self.name!r} must be 1 to 64 characters of a-z, 0-9, '_' and '-', as providers require"
            )
        if not self.description.strip():
            raise PromptValidationError(f"tool {self.name!r} needs a description: the model selects tools by it")
        if self.params_type is not type(None) and not _is_dataclass(self.params_type):
            raise PromptValidationError(
                f"tool {self.name!r}: params must be a dataclass or None, not {self.params_type!r}"
            )
        self._check_result_type()
        self._check_handler()
        self._check_spec()
        for example in self.examples:
            self._check_example(example)

    def _check_spec(self) -> None:
        """Raise for parameters without a JSON schema when the tool is declared, not during a request."""
        try:
            self.spec()
        except SchemaError as error:
            raise PromptValidationError(f"tool {self.name!r}: {error}") from error

    def _check_result_type(self) -> None:
        if not _is_valid_result_type(self.result_type):
            raise PromptValidationError(
                f"tool {self.name!r}: result must be a dataclass, a JSON-like type, None, "
                f"or a class with render(), not {self.result_type!r}"
            )

    def _check_handler(self) -> None:
        if self.handler is None:
            raise PromptValidationError(
                f"tool {self.name!r} needs a handler; a tool that the provider runs is a NativeTool"
            )
        check_handler(self.handler, params_type=self.params_type, result_type=self.result_type, tool=self.name)

    def _check_example(self, example: ToolExample[Any, Any]) -> None:
        parts = (("input", example.input, self.params_type), ("output", example.output, self.result_type))
        for part, value, wanted in parts:
            if not _is_instance(value, wanted):
                raise PromptValidationError(
                    f"tool {self.name!r}: the {part} of example {example.description!r} "
                    f"is a {type(value).__name__}, not {wanted!r}"
                )

    @classmethod
    def wrap(cls, handler: Callable[..., Any], /) -> Tool[Any, Any]:
        """Create a tool from a function: its name, the first paragraph of its docstring, its annotations."""
        name = getattr(handler, "__name__", "")
        description = (getattr(handler, "__doc__", None) or "").strip()
        if not description:
            raise PromptValidationError(f"Tool.wrap({name}): add a docstring; it becomes the description of the tool")
        return Tool(name=name, description=" ".join(description.split("\n\n")[0].split()), handler=handler)

    def spec(self) -> ToolSpec:
        """The function declaration: with a strict schema if the parameters allow one, else with a plain one."""
        if self.params_type is type(None):
            empty: dict[str, Any] = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
            return ToolSpec(self.name, self._full_description(), empty, strict=True)
        try:
            parameters = strict_schema(self.params_type, descriptions=self.param_descriptions)
            return ToolSpec(self.name, self._full_description(), parameters, strict=True)
        except SchemaError:
            parameters = schema(self.params_type, descriptions=self.param_descriptions)
            return ToolSpec(self.name, self._full_description(), parameters, strict=False)

    def _full_description(self) -> str:
        lines = [self.description]
        for example in self.examples:
            shown = dump_json(example.input, fallback=repr) if example.input is not None else "no parameters"
            answer = ToolResult.ok(example.output).render() or "nothing"
            lines.append(f"Example: {example.description}\n{shown} → {answer}")
        return "\n\n".join(lines)

    def with_descriptions(self, description: str, param_descriptions: Mapping[str, str]) -> Tool[P, R]:
        """A copy with other descriptions of the tool and its parameters."""
        other = dataclasses.replace(self, description=description)
        object.__setattr__(other, "param_descriptions", dict(param_descriptions))
        other._check_spec()  # noqa: SLF001 - another instance of this class
        return other

    def declaration(self) -> NativeDeclaration | None:
        """The declaration of a provider-run tool; None, because the client runs this one."""
        return None

    def prompt_text(self) -> str:
        """The text about this tool in the prompt; empty, because the function declaration has the description."""
        return ""


def _is_dataclass(type_form: Any) -> bool:  # noqa: ANN401 - any type form
    return dataclasses.is_dataclass(get_origin(type_form) or type_form)


def _is_instance(value: object, expected: Any) -> bool:  # noqa: ANN401 - any type form
    """Whether a value is an instance of a type form, as far as that is known at run time."""
    plain = get_origin(expected) or expected
    if plain in _UNIONS:
        return any(_is_instance(value, member) for member in get_args(expected))
    if plain is Any or not isinstance(plain, type) or getattr(plain, "_is_protocol", False):
        return True
    return isinstance(value, plain)


def _is_valid_result_type(result_type: Any) -> bool:  # noqa: ANN401 - any type form
    plain = get_origin(result_type) or result_type
    if plain in _UNIONS:
        return all(_is_valid_result_type(member) for member in get_args(result_type))
    if plain is Any or plain in _JSON_TYPES or _is_dataclass(plain):
        return True
    return isinstance(plain, type) and issubclass(plain, ToolRenderableResult)


@_runs_somewhere
@dataclass(frozen=True, kw_only=True)
class NativeTool(Tool[P, R], Generic[P, R]):
    """A tool that the provider runs. Its type arguments are the types of params and result in events.

    It has the provider's default configuration, and `with_config` returns one with another.
    """

    accepts_overrides: bool = False

    def _check_handler(self) -> None:
        if self.handler is not None:
            raise PromptValidationError(
                f"native tool {self.name!r} is run by the provider and takes no handler; "
                f"use Tool to run it on the client, or ProviderTool to handle the provider's output"
            )

    def declaration(self) -> NativeDeclaration:
        return NativeDeclaration(capability=self.name, name=self.name, tool=cast("Tool[Any, Any]", self))

    def prompt_text(self) -> str:
        """Description and examples: providers take neither in the declaration of their own tools."""
        return self._full_description()

    def with_config(self, config: C) -> ConfiguredNativeTool[P, R, C]:
        """A copy with the configuration of its capability, such as the vector stores of `file_search`.

        `config` is a configuration of the adapter, such as `FileSearchConfig`, or a declaration in wire form.
        """
        kind: Any = cast("Any", ConfiguredNativeTool)[self.params_type, self.result_type, type(config)]
        fields = {one.name: getattr(self, one.name) for one in dataclasses.fields(self) if one.init}
        configured = kind(**{**fields, "config": config})
        return configured.with_descriptions(self.description, self.param_descriptions)


@_runs_somewhere
@dataclass(frozen=True, kw_only=True)
class ConfiguredNativeTool(NativeTool[P, R], Generic[P, R, C]):
    """A `NativeTool` with the configuration of its capability; made by `NativeTool.with_config`."""

    config: C = field(hash=False)

    def declaration(self) -> NativeDeclaration:
        return dataclasses.replace(super().declaration(), config=self.config)


@_runs_somewhere
@dataclass(frozen=True, kw_only=True)
class ProviderTool(Tool[P, R], Generic[P, R, C]):
    """A tool of one provider, with its configuration and a hook for its output.

    `handle_provider_output` receives the typed result and returns the `ToolResult`. Without the hook, `handler` is
    called; both are optional.
    """

    provider: str
    config: C = field(hash=False)
    capability: str = ""
    handle_provider_output: Callable[[R, ToolContext], ToolResult[R]] | None = None
    accepts_overrides: bool = False

    def _check_handler(self) -> None:
        if not self.provider:
            raise PromptValidationError(f"provider tool {self.name!r} needs its provider, such as provider='openai'")
        if self.handler is not None:
            check_handler(self.handler, params_type=self.params_type, result_type=self.result_type, tool=self.name)

    def declaration(self) -> NativeDeclaration:
        return NativeDeclaration(
            capability=self.capability or self.name,
            name=self.name,
            provider=self.provider,
            config=self.config,
            tool=cast("Tool[Any, Any]", self),
        )

    def prompt_text(self) -> str:
        """Description and examples, as of a `NativeTool`."""
        return self._full_description()
