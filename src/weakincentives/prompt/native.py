"""The one declaration that every way of asking for a provider-run tool becomes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weakincentives.prompt.tool import Tool


@dataclass(frozen=True, slots=True)
class NativeDeclaration:
    """A tool that the provider runs, as a prompt asks for it.

    `capability` is what the provider calls it (`web_search`); `name` is what events call it.
    `provider` is None where any provider with that capability will do. `config` is the
    provider's own, typed by whoever declared it. `tool` is the `NativeTool` or `ProviderTool`
    that it was declared with, if it was. `origin` says where, for errors about collisions.
    """

    capability: str
    name: str
    provider: str | None = None
    config: object = field(default=None, hash=False)
    tool: Tool[Any, Any] | None = None
    origin: str = ""
