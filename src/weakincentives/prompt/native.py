"""`NativeDeclaration`: the normal form of all ways to declare a provider-run tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weakincentives.prompt.tool import Tool


BUILT_IN = "built_in"
"""The `type` of a declaration or tool choice that refers to a capability by `name` instead of by its wire type."""


@dataclass(frozen=True, slots=True)
class NativeDeclaration:
    """A tool that the provider runs.

    `capability` is the provider's name of the tool (`web_search`); `name` is its name in events. `provider` is None if
    any provider with that capability will do. `config` is provider-specific. `tool` is the `NativeTool` or
    `ProviderTool` that declares it, if any. `origin` names the declaring section or adapter in error messages.
    `slot` is unique per request: the capability, unless a capability may be declared several times.
    """

    capability: str
    name: str
    provider: str | None = None
    config: object = field(default=None, hash=False)
    tool: Tool[Any, Any] | None = None
    origin: str = ""
    slot: str = ""

    def __post_init__(self) -> None:
        if not self.slot:
            object.__setattr__(self, "slot", self.capability)

    @staticmethod
    def of(declared: NativeDeclaration | Mapping[str, Any]) -> NativeDeclaration:
        """Convert a wire declaration, `{"type": …}` or `{"type": "built_in", "name": …}`, if it is one."""
        if isinstance(declared, NativeDeclaration):
            return declared
        kind = str(declared.get("type", ""))
        capability = str(declared.get("name", "")) if kind == BUILT_IN else kind
        return NativeDeclaration(capability=capability, name=capability, config=dict(declared))
