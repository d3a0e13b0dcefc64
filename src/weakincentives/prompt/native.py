"""The one declaration that every way of asking for a provider-run tool becomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weakincentives.prompt.tool import Tool


BUILT_IN = "built_in"
"""The type in a declaration, or in a choice, that names a capability of the provider, whatever its real type is."""


@dataclass(frozen=True, slots=True)
class NativeDeclaration:
    """A tool that the provider runs, as a prompt asks for it.

    `capability` is what the provider calls it (`web_search`); `name` is what events call it.
    `provider` is None where any provider with that capability will do. `config` is the
    provider's own, typed by whoever declared it. `tool` is the `NativeTool` or `ProviderTool`
    that it was declared with, if it was. `origin` says where, for errors about collisions.
    `slot` is what two declarations cannot share: the capability, unless there may be several.
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
    def of(given: NativeDeclaration | Mapping[str, Any]) -> NativeDeclaration:
        """Also from the provider's own form, `{"type": …}`, or `{"type": "built_in", "name": …}`."""
        if isinstance(given, NativeDeclaration):
            return given
        kind = str(given.get("type", ""))
        capability = str(given.get("name", "")) if kind == BUILT_IN else kind
        return NativeDeclaration(capability=capability, name=capability, config=dict(given))
