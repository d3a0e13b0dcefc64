"""Classifies the declared tools: client-side functions, hosted tools, unsupported types. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

import msgspec

from antwort.api.errors import invalid, unavailable_tool, unsupported_value
from antwort.api.requests import ToolChoice, chosen_tools
from antwort.api.tools import (
    CLIENT_TOOL_TYPES,
    KNOWN_TOOL_TYPES,
    Chosen,
    CustomTool,
    FunctionTool,
    GrammarFormat,
    McpTool,
    ToolDeclaration,
    ToolSearchTool,
    UncheckedTool,
    server_label,
    tool_family,
    tool_name,
    tool_type,
)
from antwort.engine.declared.names import TOOL_SEARCH, ToolNames
from antwort.engine.declared.tools import DeclaredTool, is_function
from antwort.engine.ports import FREE_TEXT, Choice, FunctionSpec, MustCall, ToolRegistry


@dataclass(frozen=True)
class ClientSide:
    """The client runs the call. `is_custom` is a custom tool, which takes free text; `is_search` is a tool search."""

    is_custom: bool
    name: str
    namespace: str | None = None
    is_search: bool = False


@dataclass(frozen=True)
class ServerSide:
    """A provider has the call. `tool_index` is the index of the tool in the declared tools."""

    tool_index: int
    is_client_run: bool = False
    """The provider only translates: the client runs the call."""
    is_written_whole: bool = False
    """The call begins when its arguments are complete…"""
    begins_at: re.Pattern[str] | None = None
    """…or when they begin with a match of this."""


FunctionOwner: TypeAlias = ClientSide | ServerSide
_MAX_NAMED = 5  # functions, or tool types, that a message lists
_MAX_SHOWN = 64  # characters of each


@dataclass(frozen=True)
class Offer:
    """The functions that the model is offered, who runs each, and which it must not call, offered or not."""

    specs: tuple[FunctionSpec, ...] = ()
    owner: dict[str, FunctionOwner] = field(default_factory=dict[str, FunctionOwner])
    choice: Choice = "auto"
    forbidden: frozenset[str] = frozenset()
    demanded: frozenset[str] = frozenset()
    """A forced `tool_choice`: the model must call one of these, and nothing else."""
    names: ToolNames = field(default_factory=ToolNames)
    withdrawn: frozenset[str] = frozenset()
    """Functions that the model could not call correctly."""

    def client_only(self) -> Offer:
        """Without the functions that the server runs, once `max_tool_calls` is reached."""
        specs = tuple(spec for spec in self.specs if is_run_by_client(self.owner[spec.name]))
        return replace(self, specs=specs, choice="auto" if specs else "none", demanded=frozenset())

    def without(self, names: frozenset[str]) -> Offer:
        """Without functions that are withdrawn."""
        specs = tuple(spec for spec in self.specs if spec.name not in names)
        choice = self.choice if specs else "none"
        return replace(self, specs=specs, choice=choice, demanded=self.demanded - names, withdrawn=names)

    def only(self, names: frozenset[str]) -> Offer:
        """With these functions alone."""
        specs = tuple(spec for spec in self.specs if spec.name in names)
        forbidden = frozenset(self.owner) - names
        return replace(self, specs=specs, choice="auto", demanded=frozenset(), forbidden=forbidden)

    def with_auto_choice(self) -> Offer:
        """A forced `tool_choice` is forced once: after the call it is `auto`."""
        return replace(self, choice="auto", demanded=frozenset())

    @property
    def demand(self) -> str:
        """The call that is demanded, for messages to the model."""
        return self._demand(lambda name: f"'{name}'")

    @property
    def client_demand(self) -> str:
        """The same for messages to the client, in its names."""
        return self._demand(self._client_name)

    def _demand(self, shown: Callable[[str], str]) -> str:
        if len(self.demanded) > _MAX_NAMED:
            return "one of its tools"
        return " or ".join(map(shown, sorted(self.demanded)))

    def _client_name(self, name: str) -> str:
        owner = self.owner[name]
        if isinstance(owner, ClientSide) and owner.namespace is not None:
            return f"'{owner.name}' of namespace '{owner.namespace}'"
        return f"'{name}'"


def is_run_by_client(owner: FunctionOwner | None) -> bool:
    """Whether the client runs the calls of a function. Those without an owner are not run."""
    return isinstance(owner, ClientSide) or (owner is not None and owner.is_client_run)


class HasSpecs(Protocol):
    """A prepared tool, as far as the offer needs it."""

    @property
    def specs(self) -> Sequence[FunctionSpec]: ...

    @property
    def is_client_run(self) -> bool: ...

    @property
    def is_written_whole(self) -> bool: ...

    @property
    def begins_at(self) -> re.Pattern[str] | None: ...


def is_hosted(declared: DeclaredTool) -> bool:
    """Whether a provider would run the tool. A tool search needs none."""
    return not (is_function(declared.tool) or isinstance(declared.tool, ToolSearchTool))


def is_available(declared: DeclaredTool, registry: ToolRegistry) -> bool:
    """Whether this server supports the tool. Looks nothing up."""
    if not is_hosted(declared):
        return True
    return registry.supports(declared.tool) and not isinstance(declared.tool, UncheckedTool)


def available_tool_types(registry: ToolRegistry) -> list[str]:
    """The tool types that a request may declare: those that need no provider, and those of the providers."""
    return [*CLIENT_TOOL_TYPES, *registry.tool_types]


def check_tool_types(tools: Sequence[DeclaredTool], registry: ToolRegistry) -> None:
    """`ApiError` 400 for a tool type that no provider runs. Looks nothing up."""
    for declared in tools:
        if not is_available(declared, registry):
            param = f"{declared.param}.type" if declared.is_given else declared.param
            raise unavailable_tool(tool_type(declared.tool), available_tool_types(registry), param)


def check_choice(
    choice: ToolChoice, tools: Sequence[DeclaredTool], registry: ToolRegistry, ignored: Sequence[DeclaredTool] = ()
) -> None:
    """`ApiError` 400 for a choice that no tool fulfils. `ignored` tools are declared and not available."""
    several = choice if isinstance(choice, Chosen) and choice.several else None
    selectable, lacking = _Selectable(tools), _Selectable(ignored)
    for index, chosen in enumerate(chosen_tools(choice)):
        if selectable.select(chosen) or (several is not None and lacking.select(chosen)):
            continue
        param = "tool_choice.type" if several is None else f"tool_choice.tools[{index}].type"
        if chosen.type not in KNOWN_TOOL_TYPES:
            raise unsupported_value(chosen.type, available_tool_types(registry), param)
        if not {chosen.type, tool_family(chosen.type)} & set(available_tool_types(registry)):
            raise unavailable_tool(chosen.type, available_tool_types(registry), param)
        named = chosen.name or chosen.server_label or chosen.type
        raise invalid(f"Tool choice '{named}' not found in 'tools' parameter.", param="tool_choice")
    is_forced = (
        choice == "required" if not isinstance(choice, Chosen) else several is None or several.mode == "required"
    )
    allowed = _allowed(choice, selectable)
    offering = [at for at, one in enumerate(tools) if _offers(one.tool) and (allowed is None or at in allowed)]
    if is_forced and not offering:
        raise invalid(_unfulfillable(tools, ignored), param="tool_choice")


def _offers(tool: ToolDeclaration) -> bool:
    """Whether the model is offered functions for the tool."""
    return not isinstance(tool, ToolSearchTool) or tool.is_client_side


def _unfulfillable(tools: Sequence[DeclaredTool], ignored: Sequence[DeclaredTool]) -> str:
    """Why a forced choice has no function to call."""
    if ignored:
        types = sorted({tool_type(one.tool)[:_MAX_SHOWN] for one in ignored})
        shown = ", ".join(map(repr, types[:_MAX_NAMED])) + (", …" if len(types) > _MAX_NAMED else "")
        return (
            "Tool choice 'required' has no tool to call: these declared tools are not available on this server, and "
            f"ignored: {shown}."
        )
    if tools:
        return "Tool choice 'required' has no tool to call: none of the tools that it allows offers a function."
    return "Tool choice 'required' must be specified with 'tools' parameter."


class _Selectable:
    """The tools by what a `tool_choice` can name them by, as their indexes."""

    def __init__(self, tools: Sequence[DeclaredTool]) -> None:
        self._plain: dict[tuple[str, str | None], list[int]] = {}
        self._versions = {tool_family(kind): kind for one in tools if is_hosted(one) for kind in [tool_type(one.tool)]}
        """The types of the hosted tools, by their types without a version."""
        self._in_namespaces: dict[tuple[str, str | None], list[int]] = {}
        for index, one in enumerate(tools):
            named = self._plain if one.namespace is None else self._in_namespaces
            named.setdefault(_choice_key(one.tool), []).append(index)
            if one.namespace is not None:
                named.setdefault(("namespace", one.namespace.name), []).append(index)

    def select(self, choice: Chosen) -> list[int]:
        """The tools that a choice names. A name can be that of functions in several namespaces."""
        match choice.type:
            case "function" | "custom" | "namespace":
                key = choice.type, choice.name
            case "mcp":
                key = choice.type, choice.server_label
            case _:
                key = choice.type, None
                if key not in self._plain:  # another version of a declared tool names it, too
                    key = self._versions.get(tool_family(choice.type), choice.type), None
        return self._plain.get(key) or self._in_namespaces.get(key) or []


def _choice_key(tool: ToolDeclaration) -> tuple[str, str | None]:
    if (label := server_label(tool)) is not None:
        return tool_type(tool), label
    return tool_type(tool), tool_name(tool) if is_function(tool) else None


_Allowed: TypeAlias = dict[int, set[str] | None]
"""Tools by index; of an MCP server the names of its allowed tools, or None for all of them."""


def _allowed(choice: ToolChoice, tools: _Selectable) -> _Allowed | None:
    """The tools that a choice allows; None if it allows all.

    If the name of a forced function is that of several, or an MCP server is forced, only these are offered.
    """
    if not isinstance(choice, Chosen):
        return None
    is_one_function = choice.type != "mcp" or choice.name is not None
    if not choice.several and is_one_function and len(tools.select(choice)) == 1:
        return None
    allowed: _Allowed = {}
    distinct = {(chosen.type, chosen.name, chosen.server_label): chosen for chosen in chosen_tools(choice)}
    for chosen in distinct.values():  # a choice may repeat a name of many functions
        for index in tools.select(chosen):
            names = allowed.setdefault(index, set())
            if chosen.type != "mcp" or chosen.name is None or names is None:
                allowed[index] = None
            else:
                names.add(chosen.name)
    return allowed


def _allowed_specs(specs: Sequence[FunctionSpec], index: int, allowed: _Allowed | None) -> Sequence[FunctionSpec]:
    if allowed is None:
        return specs
    names = allowed.get(index, set())
    return specs if names is None else [spec for spec in specs if spec.choice_name in names]


def classify(tools: Sequence[DeclaredTool], choice: ToolChoice, prepared: Mapping[int, HasSpecs]) -> Offer:
    """The offer to the model. `prepared` holds every hosted tool, by its index in `tools`."""
    specs: list[FunctionSpec] = []
    owners: dict[str, FunctionOwner] = {}
    selectable = _Selectable(tools)
    allowed = _allowed(choice, selectable)
    taken = {tool_name(one.tool) for one in tools if one.namespace is None}
    names = ToolNames(taken | {spec.name for tool in prepared.values() for spec in tool.specs})
    described: set[str] = set()
    for index, declared in enumerate(tools):
        if declared.namespace is None:
            offered, owner = _offered(declared, index, prepared)
        else:
            spec, owner = _namespaced(declared, names, is_first=declared.namespace.name not in described)
            offered = [spec]
            described.add(declared.namespace.name)
        for spec in offered:
            if spec.name in owners:
                raise invalid(f"Two tools would be called '{spec.name}'; rename one.", param=declared.param)
            owners[spec.name] = owner
        specs += _allowed_specs(offered, index, allowed)
    callable_names = set[str]() if choice == "none" else {spec.name for spec in specs}
    forbidden = frozenset(owners.keys() - callable_names)
    model_choice = _model_choice(choice, tools, selectable, prepared, names)
    demanded = _demanded(choice, model_choice, owners, callable_names)
    return Offer(tuple(specs), owners, model_choice, forbidden, demanded, names)


def _demanded(
    given: ToolChoice, choice: Choice, owners: Mapping[str, FunctionOwner], names: set[str]
) -> frozenset[str]:
    """The functions that fulfil a forced choice. Of a hosted tool, all functions do, unless the choice names one."""
    if isinstance(choice, MustCall):
        if isinstance(given, Chosen) and given.type == "mcp" and given.name is not None:
            return frozenset({choice.name})
        owner = owners[choice.name]
        same = {name for name in names if owners[name] == owner} if isinstance(owner, ServerSide) else set[str]()
        return frozenset({choice.name, *same})
    return frozenset(names) if choice == "required" else frozenset()


def _offered(
    declared: DeclaredTool, index: int, prepared: Mapping[int, HasSpecs]
) -> tuple[Sequence[FunctionSpec], FunctionOwner]:
    tool = declared.tool
    if isinstance(tool, FunctionTool):
        spec = FunctionSpec(tool.name, tool.description, tool.parameters, strict=bool(tool.strict))
        return [spec], ClientSide(is_custom=False, name=tool.name)
    if isinstance(tool, CustomTool):
        grammar = tool.format if isinstance(tool.format, GrammarFormat) else None
        spec = FunctionSpec(tool.name, tool.description, FREE_TEXT, free_text=True, grammar=grammar)
        return [spec], ClientSide(is_custom=True, name=tool.name)
    if isinstance(tool, ToolSearchTool):  # if the server runs it, there is nothing to find: all tools are offered
        spec = FunctionSpec(TOOL_SEARCH, tool.description, tool.parameters)
        owner = ClientSide(is_custom=False, name=TOOL_SEARCH, is_search=True)
        return [spec] if tool.is_client_side else [], owner
    hosted = prepared[index]
    return hosted.specs, ServerSide(index, hosted.is_client_run, hosted.is_written_whole, hosted.begins_at)


def _namespaced(declared: DeclaredTool, names: ToolNames, *, is_first: bool) -> tuple[FunctionSpec, FunctionOwner]:
    """A function in a namespace. The description of the namespace is part of that of its first function."""
    assert declared.namespace is not None  # noqa: S101 - the caller checked it
    (spec, *_), owner = _offered(declared, 0, {})
    assert isinstance(owner, ClientSide)  # noqa: S101 - the API type of namespaces has no other tools
    namespace = declared.namespace
    name = names.name(namespace.name, owner.name)
    description = spec.description
    if is_first and namespace.description:
        about = f"[{namespace.name}: {namespace.description}]"
        description = f"{about}\n\n{description}" if description else about
    owner = replace(owner, namespace=namespace.name)
    return msgspec.structs.replace(spec, name=name, description=description), owner


def _model_choice(
    choice: ToolChoice,
    tools: Sequence[DeclaredTool],
    selectable: _Selectable,
    prepared: Mapping[int, HasSpecs],
    names: ToolNames,
) -> Choice:
    if not isinstance(choice, Chosen):
        return choice
    if choice.several:
        return choice.mode or "auto"
    first, *more = selectable.select(choice)
    one = tools[first]
    if more or (isinstance(one.tool, ToolSearchTool) and not one.tool.is_client_side):
        return "required"
    if isinstance(one.tool, McpTool):
        return _mcp_choice(choice, prepared[first].specs)
    if is_hosted(one):
        specs = prepared[first].specs
        return MustCall(specs[0].name) if specs else "required"
    return MustCall(names.name(one.namespace and one.namespace.name, tool_name(one.tool)))


def _mcp_choice(choice: Chosen, specs: Sequence[FunctionSpec]) -> Choice:
    """A tool of an MCP server, or any of its tools. Which it has is known when they are listed."""
    found = [spec for spec in specs if choice.name in (None, spec.choice_name)]
    if not found:
        named = choice.name or choice.server_label
        raise invalid(f"Tool choice '{named}' not found in the tools of the MCP server.", param="tool_choice")
    return MustCall(found[0].name) if len(found) == 1 else "required"
