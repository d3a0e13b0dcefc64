"""`Capability`: how one provider-run tool is declared in a request, and how its response items are parsed.

Each module beside this one whose name ends in `_section` holds one tool: a section, a configuration, the types of its
calls and results, and a `Capability` that maps them to the wire. `registry` finds these modules; nothing else lists
them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar, cast

from weakincentives.adapters.openai.native_tools.code_interpreter_tool import ContainerFile
from weakincentives.adapters.openai.native_tools.validation import validate_types
from weakincentives.adapters.openai.wire import Wire
from weakincentives.adapters.turn import ToolOutput
from weakincentives.errors import NativeToolError
from weakincentives.prompt import NativeDeclaration, Section, SupportsDataclass, ToolContext, ToolResult
from weakincentives.prompt.native import BUILT_IN
from weakincentives.resources import ResourceRegistry
from weakincentives.serde import dump_json

PROVIDER = "openai"

C = TypeVar("C")


class ToolConfigError(ValueError):
    """A configuration that the provider would reject. The message names the field and the allowed values."""


@dataclass(frozen=True, slots=True)
class ResponseContext:
    """Parts of a response that belong to a call but are separate items."""

    outputs: Mapping[str, Wire] = field(default_factory=dict[str, Wire])
    """Output items of calls that the provider ran, by call id."""

    files: Mapping[str, tuple[ContainerFile, ...]] = field(default_factory=dict[str, tuple[ContainerFile, ...]])
    """Files that messages cite after a call, by call id."""


@dataclass(frozen=True, slots=True)
class ProviderRan:
    """A call that the provider ran."""

    params: object
    result: ToolResult[Any]


@dataclass(frozen=True, slots=True)
class ClientMustRun:
    """A call that the client must run: `run` executes it, `answer` turns the output into an input item."""

    params: object
    run: Callable[[ToolContext], ToolResult[Any]]
    answer: Callable[[ToolOutput], Wire]
    undone_on_failure: bool = True


ParsedCall: TypeAlias = ProviderRan | ClientMustRun | None


class Capability(ABC):
    """One provider-run tool."""

    name: ClassVar[str]
    """The provider's name of the tool, and the `type` of its declaration."""

    items: ClassVar[frozenset[str]]
    """The types of the response items of its calls."""

    config_type: ClassVar[type[Any]]

    fields: ClassVar[tuple[str, ...]] = ()
    """The fields of its declaration besides `type`."""

    includes: ClassVar[tuple[str, ...]] = ()
    """Values of the request's `include` that make the response contain results."""
    extension_includes: ClassVar[tuple[str, ...]] = ()
    """Values of `include` that antwort knows and OpenAI refuses."""

    runs_in_container: ClassVar[bool] = False
    """Whether its calls can run in the container of a workspace."""

    example: ClassVar[ProviderRan]
    """An example call, to check that the declared params and result types can hold one."""

    missing: ClassVar[str] = "a configuration"
    """What a tool with nothing to declare needs, for the error."""

    def declare(self, config: object) -> Wire | None:
        """The declaration for a request; None if there is nothing to declare. Raises `ToolConfigError`."""
        if isinstance(config, Mapping):
            return self.check_declaration(cast("Mapping[str, Any]", config))
        if config is None:
            config = self.defaults()
        if not isinstance(config, self.config_type):
            raise ToolConfigError(f"its config must be a {self.config_type.__name__}, not {config!r}")
        if (why := validate_types(config)) is not None:
            raise ToolConfigError(why)
        return {"type": self.name, **fields} if (fields := self.declaration_fields(config)) is not None else None

    def defaults(self) -> object:
        """The configuration if none was given."""
        return self.config_type()

    @abstractmethod
    def declaration_fields(self, config: Any) -> Wire | None:  # noqa: ANN401 - each subclass has its own config type
        """The checked fields of the declaration."""

    def check_declaration(self, given: Mapping[str, Any]) -> Wire | None:
        """Check a declaration in wire form. Field names are checked here, values by the provider."""
        named = {"type", "name"} if given.get("type") == BUILT_IN else {"type"}
        if unknown := sorted(given.keys() - {*self.fields, *named}):
            raise ToolConfigError(
                f"{unknown[0]!r} is no field of {self.name}; allowed are: {', '.join(self.fields) or 'none'}"
            )
        return {**{key: value for key, value in given.items() if key in self.fields}, "type": self.name}

    def slot(self, wire: Wire) -> str:
        """The uniqueness key of a declaration, also from a call of it: no two declarations of a prompt share it."""
        _ = wire
        return self.name

    def choice(self, wire: Wire) -> Wire:
        """The `tool_choice` of a request that forces a call of this tool."""
        _ = wire
        return {"type": self.name}

    def name_in_choice(self, choice: Mapping[str, Any]) -> str | None:
        """The tool name in a `tool_choice` in wire form; None if the form is wrong."""
        return self.name if len(choice) == 1 else None

    def container_id(self, wire: Wire) -> str | None:
        """The container id in a declaration."""
        _ = wire
        return None

    def needs_container(self, wire: Wire) -> bool:
        """Whether a `ContainerSource` must supply the container; `ToolConfigError` if the declaration names one."""
        _ = wire
        return False

    def with_container(self, wire: Wire, container_id: str) -> Wire:
        """A declaration that `needs_container`, with this container."""
        _ = container_id
        return wire

    def check_resources(self, wire: Wire, config: object, resources: ResourceRegistry) -> None:
        """Raise `ToolConfigError` if a resource is missing that the client needs to run the calls."""
        _ = wire, config, resources

    @abstractmethod
    def parse_call(self, item: Wire, response: ResponseContext, config: object) -> ParsedCall:
        """Parse a response item; None if there is no call to record. `config` is that of the declaration."""

    def check_section(self, config: object, key: str) -> None:
        """Check the configuration of a section when the section is built."""
        try:
            self.declare(config)
        except ToolConfigError as error:
            raise NativeToolError(f"section {key!r}: {error}", prompt_name="", phase="request") from error

    def declaration(self, config: object, *, origin: str = "") -> NativeDeclaration:
        """The provider-neutral declaration of this tool."""
        return NativeDeclaration(self.name, self.name, PROVIDER, config, None, origin)


def check_container_is_open(container_id: str | None) -> None:
    """Raise `ToolConfigError` if a declaration names a container although a section of the prompt supplies one."""
    if container_id is not None:
        raise ToolConfigError(f"container is {container_id!r}, but a section of the prompt supplies one")


def check_one_of(value: object, allowed: tuple[str, ...], name: str) -> None:
    """Raise `ToolConfigError` unless the value is allowed or None."""
    if value is not None and value not in allowed:
        raise ToolConfigError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")


def without_none(**fields: object) -> Wire:
    """The fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def failed_result(item: Wire, *, value: object = None) -> ToolResult[Any] | None:
    """The result of a call that the provider reports as failed, with its error code; None if it did not fail."""
    error, status = item.get("error"), item.get("status")
    if not error and status in (None, "completed"):
        return None
    details = cast("Wire", error) if isinstance(error, dict) else {"message": error}
    code = " ".join(str(details[key]) for key in ("type", "code") if details.get(key) is not None) or status
    why = details.get("message") or (dump_json(details["content"]) if details.get("content") else "no reason given")
    return ToolResult(f"{item.get('type')} failed ({code}): {why}", value, success=False)


class NativeSection(Section[C], Generic[C]):
    """A section that declares one provider-run tool and renders no text. Its params are the configuration."""

    capability: ClassVar[Capability]

    def __init__(self, *, default_params: C | None = None, title: str = "", key: str = "") -> None:
        name = self.capability.name
        title = title or name.replace("_", " ").capitalize()
        key = key or f"{PROVIDER}_{name}"
        super().__init__(title=title, key=key, default_params=default_params, accepts_overrides=False)
        self.default_params = default_params or cast("C", self.capability.defaults())

    def _check(self) -> None:
        super()._check()
        self.capability.check_section(self.default_params, self.key)

    def render(self, params: SupportsDataclass | None, depth: int, number: str) -> str:
        _ = params, depth, number
        return ""

    def native_tools(self, params: SupportsDataclass | None = None) -> tuple[NativeDeclaration, ...]:
        return (self.capability.declaration(params or self.default_params),)
