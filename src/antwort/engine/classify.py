"""Classifies the declared tools: client-side functions, hosted tools, unsupported types. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

from antwort.api.errors import ApiError, invalid, unsupported_value
from antwort.api.requests import ToolChoice, chosen_tools, matches
from antwort.api.tools import (
    CLIENT_TOOL_TYPES,
    KNOWN_TOOL_TYPES,
    Chosen,
    CustomTool,
    FunctionTool,
    GrammarFormat,
    ToolDeclaration,
    tool_type,
)
from antwort.engine.ports import FREE_TEXT, Choice, FunctionSpec, MustCall, ToolRegistry


@dataclass(frozen=True)
class ClientSide:
    """The client runs the call. `is_custom` is a custom tool, which takes free text."""

    is_custom: bool


@dataclass(frozen=True)
class ServerSide:
    """The server runs the call. `tool_index` is the index of the tool in `tools`."""

    tool_index: int


FunctionOwner: TypeAlias = ClientSide | ServerSide


@dataclass(frozen=True)
class Offer:
    """The functions that the model is offered, who runs each, and which it must not call, offered or not."""

    specs: tuple[FunctionSpec, ...] = ()
    owner: dict[str, FunctionOwner] = field(default_factory=dict[str, FunctionOwner])
    choice: Choice = "auto"
    forbidden: frozenset[str] = frozenset()

    def client_only(self) -> Offer:
        """Without the hosted functions, once `max_tool_calls` is reached."""
        specs = tuple(spec for spec in self.specs if isinstance(self.owner[spec.name], ClientSide))
        return replace(self, specs=specs, choice="auto" if specs else "none")

    def with_auto_choice(self) -> Offer:
        """A forced `tool_choice` is forced once: after the call it is `auto`."""
        return replace(self, choice="auto")


class HasSpecs(Protocol):
    """A prepared tool, as far as the offer needs it."""

    @property
    def specs(self) -> Sequence[FunctionSpec]: ...


def is_hosted(tool: ToolDeclaration) -> bool:
    """Whether the server would run the tool."""
    return not isinstance(tool, (FunctionTool, CustomTool))


def available_tool_types(registry: ToolRegistry) -> list[str]:
    """The tool types that a request may declare: those that the client runs, and those of the providers."""
    return [*CLIENT_TOOL_TYPES, *registry.tool_types]


def check_tool_types(tools: Sequence[ToolDeclaration], choice: ToolChoice | None, registry: ToolRegistry) -> None:
    """`ApiError` 400 for a declared or chosen tool type that no provider runs. Looks nothing up."""
    for index, tool in enumerate(tools):
        if is_hosted(tool) and not registry.supports(tool):
            raise _unavailable(tool_type(tool), f"tools[{index}].type", registry)
    available = available_tool_types(registry)
    for index, chosen in enumerate(chosen_tools(choice)):
        several = isinstance(choice, Chosen) and choice.several
        param = f"tool_choice.tools[{index}].type" if several else "tool_choice.type"
        if chosen.type not in KNOWN_TOOL_TYPES:
            raise unsupported_value(chosen.type, available, param)
        if not {chosen.type, chosen.type.removesuffix("_preview")} & set(available):
            raise _unavailable(chosen.type, param, registry)


def _unavailable(kind: str, param: str, registry: ToolRegistry) -> ApiError:
    available = ", ".join(map(repr, available_tool_types(registry)))
    return invalid(f"Tool type '{kind}' is not available on this server. Available types: {available}.", param=param)


def classify(tools: Sequence[ToolDeclaration], choice: ToolChoice, prepared: Mapping[int, HasSpecs]) -> Offer:
    """The offer to the model. `prepared` holds every hosted tool, by its index in `tools`."""
    specs: list[FunctionSpec] = []
    owners: dict[str, FunctionOwner] = {}
    allowed = chosen_tools(choice) if isinstance(choice, Chosen) and choice.several else None
    for index, tool in enumerate(tools):
        offered, owner = _offered(tool, index, prepared)
        for spec in offered:
            if spec.name in owners:
                raise invalid(f"Two tools would be called '{spec.name}'; rename one.", param=f"tools[{index}]")
            owners[spec.name] = owner
        if allowed is None or any(matches(named, tool) for named in allowed):
            specs += offered
    callable_names = set[str]() if choice == "none" else {spec.name for spec in specs}
    forbidden = frozenset(owners.keys() - callable_names)
    return Offer(tuple(specs), owners, _model_choice(choice, tools, prepared), forbidden)


def _offered(
    tool: ToolDeclaration, index: int, prepared: Mapping[int, HasSpecs]
) -> tuple[Sequence[FunctionSpec], FunctionOwner]:
    if isinstance(tool, FunctionTool):
        spec = FunctionSpec(tool.name, tool.description, tool.parameters, strict=bool(tool.strict))
        return [spec], ClientSide(is_custom=False)
    if isinstance(tool, CustomTool):
        grammar = tool.format if isinstance(tool.format, GrammarFormat) else None
        spec = FunctionSpec(tool.name, tool.description, FREE_TEXT, free_text=True, grammar=grammar)
        return [spec], ClientSide(is_custom=True)
    return prepared[index].specs, ServerSide(index)


def _model_choice(choice: ToolChoice, tools: Sequence[ToolDeclaration], prepared: Mapping[int, HasSpecs]) -> Choice:
    if not isinstance(choice, Chosen):
        return choice
    if choice.several:
        return choice.mode or "auto"
    if choice.type in ("function", "custom"):
        return MustCall(choice.name or "")
    for index, tool in enumerate(tools):
        if index in prepared and matches(choice, tool) and prepared[index].specs:
            return MustCall(prepared[index].specs[0].name)
    return "required"
