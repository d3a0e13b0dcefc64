"""`NativeDeclaration`: the normal form of all ways to declare a provider-run tool."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from weakincentives.prompt.tool import Tool


BUILT_IN = "built_in"
"""The `type` of a declaration or tool choice that refers to a capability by `name` instead of by its wire type."""


@dataclass(frozen=True, slots=True)
class NativeDeclaration(Mapping[str, object]):
    """A tool that the provider runs.

    `capability` is the provider's name of the tool (`web_search`); `name` is its name in events. `provider` is None if
    any provider with that capability will do. `config` is provider-specific. `tool` is the `NativeTool` or
    `ProviderTool` that declares it, if any. `origin` names the declaring section or adapter in error messages.
    `slot` is unique per request: the capability, unless a capability may be declared several times.

    As a mapping it has the key `type`, which is the capability, `name`, `provider` if there is one, and the fields of
    `config`. Two declarations are equal if all their attributes are.
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

    def __getitem__(self, key: str) -> object:
        return self._fields()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields())

    def __len__(self) -> int:
        return len(self._fields())

    def _fields(self) -> dict[str, object]:
        own: dict[str, object] = {"type": self.capability, "name": self.name}
        own |= {"provider": self.provider} if self.provider is not None else {}
        return {**own, **_config_fields(self.config), **own}

    @staticmethod
    def of(declared: NativeDeclaration | Mapping[str, Any]) -> NativeDeclaration:
        """Convert a wire declaration, `{"type": …}` or `{"type": "built_in", "name": …}`, if it is one."""
        if isinstance(declared, NativeDeclaration):
            return declared
        kind = str(declared.get("type", ""))
        capability = str(declared.get("name", "")) if kind == BUILT_IN else kind
        return NativeDeclaration(capability=capability, name=capability, config=dict(declared))


def _config_fields(config: object) -> Mapping[str, object]:
    if isinstance(config, Mapping):
        return cast("Mapping[str, object]", config)
    if dataclasses.is_dataclass(config):
        return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return {}
