"""What the model is offered: the tools of a prompt on the wire, and every reason to refuse one. Pure."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from weakincentives.adapters.openai.native_tools.capability import Capability, ConfigError
from weakincentives.adapters.openai.native_tools.registry import capabilities
from weakincentives.adapters.openai.responses.declared_types import misfit
from weakincentives.adapters.openai.responses.history import encode
from weakincentives.adapters.openai.wire import Wire, function_choice, function_tool
from weakincentives.adapters.turn import NamedTool, ToolChoice
from weakincentives.errors import NativeToolError
from weakincentives.prompt import NativeDeclaration, RenderedPrompt
from weakincentives.prompt.native import BUILT_IN

_logger = logging.getLogger(__name__)

PLAIN_CHOICES = ("auto", "none", "required")


@dataclass(frozen=True)
class Offered:
    """One tool that the provider runs: as declared, and as it goes out."""

    declared: NativeDeclaration
    capability: Capability
    wire: Wire


@dataclass(frozen=True)
class Offer:
    """All tools of a request. `natives` are in the order of `wire`, after our own."""

    functions: tuple[Wire, ...]
    natives: tuple[Offered, ...]

    @property
    def wire(self) -> list[Wire]:
        return [*self.functions, *(offered.wire for offered in self.natives)]

    @property
    def includes(self) -> list[str]:
        return list(dict.fromkeys(value for one in self.natives for value in one.capability.includes))

    def owner(self, capability: Capability, item: Wire) -> Offered | None:
        """The declaration that a call belongs to; None for a tool that the server has without our asking."""
        slot = capability.slot_of(item)
        return next((one for one in self.natives if one.declared.slot == slot), None)

    def placed(self, container_id: str) -> Offer | None:
        """The same with everything that runs in a container in this one; None where nothing does."""
        wires = [one.capability.place(one.wire, container_id) for one in self.natives]
        if not any(wires):
            return None
        moved = (
            one if wire is None else replace(one, wire=wire) for one, wire in zip(self.natives, wires, strict=True)
        )
        return Offer(self.functions, tuple(moved))

    def choice(self, choice: ToolChoice) -> str | Wire:
        """A choice as a request says it."""
        if not isinstance(choice, NamedTool):
            return choice
        native = next((one for one in self.natives if one.declared.name == choice.name), None)
        return native.capability.choice(native.wire) if native else function_choice(choice.name)


def make_offer(rendered: RenderedPrompt[Any], *, prompt_name: str, allowed: Collection[str] | None) -> Offer:
    """The tools of a prompt. `allowed` are those that the model has; None where nobody knows."""
    functions = tuple(function_tool(tool.spec()) for tool in rendered.tools)
    return Offer(functions, offer_natives(rendered, prompt_name=prompt_name, allowed=allowed))


def offer_natives(
    rendered: RenderedPrompt[Any], *, prompt_name: str, allowed: Collection[str] | None
) -> tuple[Offered, ...]:
    """Those of a prompt's tools that the provider runs; an error says what is wrong with one, and where it is from."""
    natives = tuple(_natives(rendered.native_tools, prompt_name, allowed))
    slots: dict[str, Offered] = {}
    for one in natives:
        if one.declared.slot in slots:
            first = slots[one.declared.slot].declared.origin
            raise refusal(one.declared, f"{first} declares {one.declared.slot!r} too: remove one of them", prompt_name)
        slots[one.declared.slot] = one
    return natives


def find_capability(declared: NativeDeclaration, prompt_name: str, allowed: Collection[str] | None) -> Capability:
    """What a declaration asks for; refused where the provider, or this model, has nothing of the kind."""
    capability = capabilities().get(declared.capability)
    if capability is None:
        what = f"{declared.capability!r} is no tool that OpenAI runs. Known are: {', '.join(capabilities())}"
    elif allowed is not None and capability.name not in allowed:
        what = f"this model does not have {capability.name!r}. It has: {', '.join(sorted(allowed)) or 'none'}"
    else:
        return capability
    raise refusal(declared, what, prompt_name)


def resolve_choice(choice: object, functions: Collection[str], natives: Collection[Offered]) -> ToolChoice:
    """A `tool_choice` in any of its forms as one of ours. A `ValueError` says what is wrong with it."""
    if isinstance(choice, Mapping):
        choice = NamedTool(_chosen(choice))  # pyright: ignore[reportUnknownArgumentType] - any JSON
    if not isinstance(choice, NamedTool):
        if choice == "required" and not functions and not natives:
            raise ValueError("tool_choice is 'required', but no tool is offered: give the prompt one, or choose 'auto'")
        if choice in PLAIN_CHOICES:
            return cast("ToolChoice", choice)
        raise ValueError(f"tool_choice must be 'auto', 'none', 'required', or name a tool, and is {choice!r}")
    names = [*functions, *(one.declared.name for one in natives)]
    if choice.name in names:
        return choice
    meant = [one.declared.name for one in natives if one.capability.name == choice.name]
    if len(meant) != 1:
        raise ValueError(
            f"tool_choice names {choice.name!r}, which is not offered. Tools: {', '.join(names) or 'none'}"
        )
    return NamedTool(meant[0])


def _chosen(choice: Mapping[str, Any]) -> str:
    kind = choice.get("type")
    capability = capabilities().get(kind) if isinstance(kind, str) else None
    name = choice.get("name") if kind in (BUILT_IN, "function") else capability and capability.chosen_by(choice)
    if not isinstance(name, str) or not name:
        raise ValueError(
            "tool_choice must be {'type': 'function', 'name': …}, {'type': 'built_in', 'name': …} or "
            f"{{'type': …}} with one of {', '.join(capabilities())}, and is {dict(choice)!r}"
        )
    if kind == BUILT_IN and name not in capabilities():
        raise ValueError(f"tool_choice names built_in {name!r}; known are: {', '.join(capabilities())}")
    return name


def _natives(
    declared: tuple[NativeDeclaration, ...], prompt_name: str, allowed: Collection[str] | None
) -> Iterator[Offered]:
    for one in declared:
        capability = find_capability(one, prompt_name, allowed)
        try:
            wire = capability.declare(one.config)
            encode(wire)
        except ConfigError as error:
            raise refusal(one, str(error), prompt_name) from error
        except TypeError as error:
            raise refusal(one, f"its config holds what JSON cannot: {error}", prompt_name) from error
        if one.tool is not None and (why := misfit(one.tool, capability.example)):
            raise refusal(one, why, prompt_name)
        if wire is None:
            _logger.warning("%s (%s) has nothing to work on: the model is not offered it", one.name, one.origin)
        else:
            yield Offered(replace(one, slot=capability.slot(wire)), capability, wire)


def refusal(declared: NativeDeclaration, why: str, prompt_name: str) -> NativeToolError:
    """The error about one declaration."""
    return NativeToolError(
        f"tool {declared.name!r} ({declared.origin}): {why}", prompt_name=prompt_name, phase="request"
    )
