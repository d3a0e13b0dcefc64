"""What a tool of the provider's is to the adapter: how it is declared, and how its items become calls and results.

Each file beside this one that ends in `_section` holds one: a section, a configuration, the types of its calls and
results, and a `Capability` that says how they look on the wire. `registry` finds them; nothing else lists them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar, cast

from weakincentives.adapters.openai.native_tools.code_interpreter_tool import ContainerFile
from weakincentives.adapters.openai.native_tools.validation import misfit_in
from weakincentives.adapters.openai.wire import Wire
from weakincentives.adapters.turn import ToolOutput
from weakincentives.errors import NativeToolError
from weakincentives.prompt import NativeDeclaration, Section, SupportsDataclass, ToolContext, ToolResult
from weakincentives.prompt.native import BUILT_IN
from weakincentives.resources import ResourceRegistry
from weakincentives.serde import dump_json

PROVIDER = "openai"

C = TypeVar("C")


class ConfigError(ValueError):
    """A configuration that the provider would refuse. Names the field, and what is allowed."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What came along with a call in the same response."""

    outputs: Mapping[str, Wire] = field(default_factory=dict[str, Wire])
    """Items that answer a call, by its id, where the provider has run it."""

    files: Mapping[str, tuple[ContainerFile, ...]] = field(default_factory=dict[str, tuple[ContainerFile, ...]])
    """Files that the model cites after a call, by its id."""


@dataclass(frozen=True, slots=True)
class Ran:
    """The provider ran this."""

    params: object
    result: ToolResult[Any]


@dataclass(frozen=True, slots=True)
class LeftToUs:
    """The provider leaves this to the client: `run` it, and send the `answer`."""

    params: object
    run: Callable[[ToolContext], ToolResult[Any]]
    answer: Callable[[ToolOutput], Wire]
    undone_on_failure: bool = True


Reading: TypeAlias = Ran | LeftToUs | None


class Capability(ABC):
    """One tool of the provider's."""

    name: ClassVar[str]
    """What the provider calls it, and what its declaration has as `type`."""

    items: ClassVar[frozenset[str]]
    """The types of the items that its calls are."""

    config_type: ClassVar[type[Any]]

    fields: ClassVar[tuple[str, ...]] = ()
    """What its declaration may have besides `type`."""

    includes: ClassVar[tuple[str, ...]] = ()
    """What a request must ask for so that results come along."""

    example: ClassVar[Ran]
    """A call as it might be, to see whether the types that somebody declared can hold one."""

    def declare(self, config: object) -> Wire | None:
        """The declaration for a request; None where there is nothing to offer. Raises `ConfigError`."""
        if isinstance(config, Mapping):
            return self.adopt(cast("Mapping[str, Any]", config))
        if config is None:
            config = self.defaults()
        if not isinstance(config, self.config_type):
            raise ConfigError(f"its config must be a {self.config_type.__name__}, not {config!r}")
        if (why := misfit_in(config)) is not None:
            raise ConfigError(why)
        return {"type": self.name, **fields} if (fields := self.write(config)) is not None else None

    def defaults(self) -> object:
        """The configuration where none was given."""
        return self.config_type()

    @abstractmethod
    def write(self, config: Any) -> Wire | None:  # noqa: ANN401 - each subclass knows its own
        """The fields of the declaration, checked."""

    def adopt(self, given: Mapping[str, Any]) -> Wire | None:
        """A declaration in the provider's own form: its fields are checked by name, its values by the provider."""
        named = {"type", "name"} if given.get("type") == BUILT_IN else {"type"}
        if unknown := sorted(given.keys() - {*self.fields, *named}):
            raise ConfigError(
                f"{unknown[0]!r} is no field of {self.name}; allowed are: {', '.join(self.fields) or 'none'}"
            )
        return {**{key: value for key, value in given.items() if key in self.fields}, "type": self.name}

    def slot(self, wire: Wire) -> str:
        """What two declarations cannot share."""
        _ = wire
        return self.name

    def slot_of(self, item: Wire) -> str:
        """The slot of the declaration that a call belongs to."""
        _ = item
        return self.name

    def choice(self, wire: Wire) -> Wire:
        """How a request says that the model must call this."""
        _ = wire
        return {"type": self.name}

    def chosen_by(self, choice: Mapping[str, Any]) -> str | None:
        """The name that a choice of this kind of tool gives in the API's own form; None where that is not its form."""
        return self.name if len(choice) == 1 else None

    def container(self, wire: Wire) -> str | None:
        """The container that a declaration names."""
        _ = wire
        return None

    def place(self, wire: Wire, container_id: str) -> Wire | None:
        """The declaration with its code in this container; None for a tool that runs in none. Raises `ConfigError`."""
        _ = wire, container_id
        return None

    def check_resources(self, wire: Wire, config: object, resources: ResourceRegistry) -> None:
        """Refuse, with a `ConfigError`, what lacks something that we would need to run it."""
        _ = wire, config, resources

    @abstractmethod
    def read(self, item: Wire, scene: Scene, config: object) -> Reading:
        """What an item tells; None where that is nothing to record. `config` is the declaration's."""

    def check_section(self, config: object, key: str) -> None:
        """For sections, which know what they will declare and can refuse it when they are built."""
        try:
            self.declare(config)
        except ConfigError as error:
            raise NativeToolError(f"section {key!r}: {error}", prompt_name="", phase="request") from error

    def declaration(self, config: object, *, origin: str = "") -> NativeDeclaration:
        """The declaration that every way of asking for this becomes."""
        return NativeDeclaration(self.name, self.name, PROVIDER, config, None, origin)


def one_of(value: object, allowed: tuple[str, ...], name: str) -> None:
    """Refuse what is not among these; None is always fine."""
    if value is not None and value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")


def without_none(**fields: object) -> Wire:
    """The fields that were given."""
    return {name: value for name, value in fields.items() if value is not None}


def failure(item: Wire, *, value: object = None) -> ToolResult[Any] | None:
    """The result of a call that the provider reports as failed, with its code; None for one that went well."""
    error, status = item.get("error"), item.get("status")
    if not error and status in (None, "completed"):
        return None
    told = cast("Wire", error) if isinstance(error, dict) else {"message": error}
    code = " ".join(str(told[key]) for key in ("type", "code") if told.get(key) is not None) or status
    why = told.get("message") or (dump_json(told["content"]) if told.get("content") else "no reason given")
    return ToolResult(f"{item.get('type')} failed ({code}): {why}", value, success=False)


class NativeSection(Section[C], Generic[C]):
    """A section that declares one tool of the provider's and renders no text. Its params are the configuration."""

    capability: ClassVar[Capability]

    def _check(self) -> None:
        super()._check()
        self.capability.check_section(self.default_params, self.key)

    def render(self, params: SupportsDataclass | None, depth: int, number: str) -> str:
        _ = params, depth, number
        return ""

    def native_tools(self, params: SupportsDataclass | None = None) -> tuple[NativeDeclaration, ...]:
        return (self.capability.declaration(params or self.default_params),)
