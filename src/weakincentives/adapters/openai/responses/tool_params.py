"""`ToolParams`: the `tools` and `tool_choice` of a request, built from a prompt; checks every declaration. Pure."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from weakincentives.adapters.openai.native_tools.capability import Capability, ToolConfigError
from weakincentives.adapters.openai.native_tools.registry import capabilities
from weakincentives.adapters.openai.responses.declared_types import type_mismatch
from weakincentives.adapters.openai.responses.history import encode_json
from weakincentives.adapters.openai.wire import Wire, function_choice, function_tool
from weakincentives.errors import NativeToolError
from weakincentives.prompt import NamedTool, NativeDeclaration, RenderedPrompt, ToolChoice
from weakincentives.prompt.native import BUILT_IN
from weakincentives.prompt.tool import PLAIN_TOOL_CHOICES

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class NativeToolParam:
    """One provider-run tool: its declaration in the prompt, and its wire form."""

    declaration: NativeDeclaration
    capability: Capability
    wire: Wire


@dataclass(frozen=True)
class ToolParams:
    """The `tools` of a request: function tools first, then provider-run tools."""

    functions: tuple[Wire, ...]
    native: tuple[NativeToolParam, ...]

    @property
    def wire(self) -> list[Wire]:
        return [*self.functions, *(one.wire for one in self.native)]

    @property
    def includes(self) -> list[str]:
        return list(dict.fromkeys(value for one in self.native for value in one.capability.includes))

    @property
    def extension_includes(self) -> list[str]:
        """Values of `include` that only some servers know."""
        return list(dict.fromkeys(value for one in self.native for value in one.capability.extension_includes))

    def owner(self, capability: Capability, item: Wire) -> NativeToolParam | None:
        """The tool that a call belongs to; None for a tool that the server added itself."""
        slot = capability.slot(item)
        return next((one for one in self.native if one.declaration.slot == slot), None)

    def needs_container(self) -> bool:
        """Whether some tool runs in a container that a section supplies. `ToolConfigError` if a tool names another."""
        needed = [one.capability.needs_container(one.wire) for one in self.native]  # all of them are checked
        return any(needed)

    def with_container(self, container_id: str) -> ToolParams:
        """The same tools, with this container for those that need one."""
        moved = (
            replace(one, wire=one.capability.with_container(one.wire, container_id))
            if one.capability.needs_container(one.wire)
            else one
            for one in self.native
        )
        return ToolParams(self.functions, tuple(moved))

    def tool_choice(self, choice: ToolChoice) -> str | Wire:
        """The `tool_choice` of a request."""
        if not isinstance(choice, NamedTool):
            return choice
        native = next((one for one in self.native if one.declaration.name == choice.name), None)
        return native.capability.choice(native.wire) if native else function_choice(choice.name)


def build_tool_params(
    rendered: RenderedPrompt[Any], *, prompt_name: str, allowed: Collection[str] | None
) -> ToolParams:
    """The tools of a prompt. `allowed` are the provider-run tools of the model; None if unknown."""
    functions = tuple(function_tool(tool.spec()) for tool in rendered.tools)
    return ToolParams(functions, native_tool_params(rendered, prompt_name=prompt_name, allowed=allowed))


def native_tool_params(
    rendered: RenderedPrompt[Any], *, prompt_name: str, allowed: Collection[str] | None
) -> tuple[NativeToolParam, ...]:
    """The provider-run tools of a prompt. `NativeToolError` names a wrong declaration and its origin."""
    native = tuple(_native_tool_params(rendered.native_tools, prompt_name, allowed))
    slots: dict[str, NativeToolParam] = {}
    for one in native:
        slot = one.declaration.slot
        if slot in slots:
            why = f"{slots[slot].declaration.origin} declares {slot!r} too: remove one of them"
            raise declaration_error(one.declaration, why, prompt_name)
        slots[slot] = one
    return native


def find_capability(declared: NativeDeclaration, prompt_name: str, allowed: Collection[str] | None) -> Capability:
    """The capability of a declaration; `NativeToolError` if the provider or this model does not have it."""
    capability = capabilities().get(declared.capability)
    if capability is None:
        what = f"{declared.capability!r} is no tool that OpenAI runs. Known are: {', '.join(capabilities())}"
    elif allowed is not None and capability.name not in allowed:
        what = f"this model does not have {capability.name!r}. It has: {', '.join(sorted(allowed)) or 'none'}"
    else:
        return capability
    raise declaration_error(declared, what, prompt_name)


def resolve_tool_choice(choice: object, functions: Collection[str], native: Collection[NativeToolParam]) -> ToolChoice:
    """Check a `tool_choice` against the tools, and convert the API's own form. Raises `ValueError`."""
    if isinstance(choice, Mapping):
        choice = NamedTool(_name_in_choice(choice))  # pyright: ignore[reportUnknownArgumentType] - any JSON
    if not isinstance(choice, NamedTool):
        if choice == "required" and not functions and not native:
            raise ValueError("tool_choice is 'required', but no tool is offered: give the prompt one, or choose 'auto'")
        if choice in PLAIN_TOOL_CHOICES:
            return cast("ToolChoice", choice)
        raise ValueError(f"tool_choice must be 'auto', 'none', 'required', or name a tool, and is {choice!r}")
    names = [*functions, *(one.declaration.name for one in native)]
    if choice.name in names:
        return choice
    of_capability = [one.declaration.name for one in native if one.capability.name == choice.name]
    if len(of_capability) != 1:
        raise ValueError(
            f"tool_choice names {choice.name!r}, which is not offered. Tools: {', '.join(names) or 'none'}"
        )
    return NamedTool(of_capability[0])


def _name_in_choice(choice: Mapping[str, Any]) -> str:
    kind = choice.get("type")
    capability = capabilities().get(kind) if isinstance(kind, str) else None
    name = choice.get("name") if kind in (BUILT_IN, "function") else capability and capability.name_in_choice(choice)
    if not isinstance(name, str) or not name:
        raise ValueError(
            "tool_choice must be {'type': 'function', 'name': …}, {'type': 'built_in', 'name': …} or "
            f"{{'type': …}} with one of {', '.join(capabilities())}, and is {dict(choice)!r}"
        )
    if kind == BUILT_IN and name not in capabilities():
        raise ValueError(f"tool_choice names built_in {name!r}; known are: {', '.join(capabilities())}")
    return name


def _native_tool_params(
    declared: tuple[NativeDeclaration, ...], prompt_name: str, allowed: Collection[str] | None
) -> Iterator[NativeToolParam]:
    for one in declared:
        capability = find_capability(one, prompt_name, allowed)
        try:
            wire = capability.declare(one.config)
            encode_json(wire)
        except ToolConfigError as error:
            raise declaration_error(one, str(error), prompt_name) from error
        except TypeError as error:
            raise declaration_error(one, f"its config cannot be encoded as JSON: {error}", prompt_name) from error
        if one.tool is not None and (why := type_mismatch(one.tool, capability.example)):
            raise declaration_error(one, why, prompt_name)
        if wire is None and one.tool is not None:  # the prompt's text describes this tool
            raise declaration_error(one, f"it has nothing to work on: give it {capability.missing}", prompt_name)
        if wire is None:
            _logger.warning("%s (%s) has nothing to work on: it is left out of the request", one.name, one.origin)
        else:
            yield NativeToolParam(replace(one, slot=capability.slot(wire)), capability, wire)


def declaration_error(native: NativeDeclaration, why: str, prompt_name: str) -> NativeToolError:
    """The error about one declaration."""
    return NativeToolError(f"tool {native.name!r} ({native.origin}): {why}", prompt_name=prompt_name, phase="request")
