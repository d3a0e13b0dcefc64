"""Whose tool is it: ours, the client's, or nobody's. Decided once for a request. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from antwort.api.errors import invalid
from antwort.api.requests import ToolChoice, chosen_tools, matches
from antwort.api.tools import Chosen, CustomTool, FunctionTool, GrammarFormat, ToolDeclaration, tool_type
from antwort.engine.ports import FREE_TEXT, Choice, FunctionSpec, Must, Toolbox, Workbench


@dataclass(frozen=True)
class Clients:
    """The call goes back to the client."""

    custom: bool


@dataclass(frozen=True)
class Ours:
    """The call is run here. `at` is the place of the tool among those declared."""

    at: int


Whose: TypeAlias = Clients | Ours


@dataclass(frozen=True)
class Offer:
    """What the model is told of, whose each function is, and which of them it must not call, told or not."""

    specs: tuple[FunctionSpec, ...] = ()
    whose: dict[str, Whose] = field(default_factory=dict[str, Whose])
    choice: Choice = "auto"
    forbidden: frozenset[str] = frozenset()

    def without_ours(self) -> Offer:
        """Only what goes back to the client, once no more calls may be run here."""
        specs = tuple(spec for spec in self.specs if isinstance(self.whose[spec.name], Clients))
        return replace(self, specs=specs, choice="auto" if specs else "none")

    def described(self, benches: Mapping[int, Workbench]) -> Offer:
        """The same, with what the tools that are run here say of themselves once they are ready."""
        specs = tuple(
            benches[whose.at].describe(spec) if isinstance(whose := self.whose[spec.name], Ours) else spec
            for spec in self.specs
        )
        return replace(self, specs=specs)

    def relaxed(self) -> Offer:
        """A call that was demanded has been made, so it is demanded no more."""
        return replace(self, choice="auto")


def classify(tools: Sequence[ToolDeclaration], choice: ToolChoice, toolbox: Toolbox) -> Offer:
    """Sort the declared tools; one that nobody here can run is an error that names it."""
    specs: list[FunctionSpec] = []
    whose: dict[str, Whose] = {}
    allowed = chosen_tools(choice) if isinstance(choice, Chosen) and choice.several else None
    for at, tool in enumerate(tools):
        offered, owner = _offer(tool, at, toolbox)
        for spec in offered:
            if spec.name in whose:
                raise invalid(f"Two tools would be called '{spec.name}'; rename one.", param=f"tools[{at}]")
            whose[spec.name] = owner
        if allowed is None or any(matches(one, tool) for one in allowed):
            specs += offered
    may = set[str]() if choice == "none" else {spec.name for spec in specs}
    return Offer(tuple(specs), whose, _choice(choice, tools, toolbox), frozenset(whose.keys() - may))


def _offer(tool: ToolDeclaration, at: int, toolbox: Toolbox) -> tuple[Sequence[FunctionSpec], Whose]:
    if isinstance(tool, FunctionTool):
        return [FunctionSpec(tool.name, tool.description, tool.parameters, strict=bool(tool.strict))], Clients(
            custom=False
        )
    if isinstance(tool, CustomTool):
        grammar = tool.format if isinstance(tool.format, GrammarFormat) else None
        spec = FunctionSpec(tool.name, tool.description, FREE_TEXT, free_text=True, grammar=grammar)
        return [spec], Clients(custom=True)
    offered = toolbox.offer(tool)
    if offered is None:
        raise invalid(f"Tool type '{tool_type(tool)}' is not available on this server.", param=f"tools[{at}].type")
    return offered, Ours(at)


def _choice(choice: ToolChoice, tools: Sequence[ToolDeclaration], toolbox: Toolbox) -> Choice:
    if not isinstance(choice, Chosen):
        return choice
    if choice.several:
        return choice.mode or "auto"
    if choice.type in ("function", "custom"):
        return Must(choice.name or "")
    for tool in tools:
        if matches(choice, tool) and (offered := toolbox.offer(tool)):
            return Must(offered[0].name)
    return "required"
