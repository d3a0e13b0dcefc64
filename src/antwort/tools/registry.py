"""The registry of hosted tools: who offers what, and a call for whoever the model asks for.

A provider that raises becomes a failed call that the model reads about, never a dead response.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Protocol

from antwort.api.errors import invalid
from antwort.api.ids import Prefix, new_id
from antwort.api.items import Annotation
from antwort.api.tools import ToolDeclaration, tool_type
from antwort.engine.ports import FunctionSpec, HostedCall, Progress, ToolContext, ToolDone, Workbench

_logger = logging.getLogger(__name__)

_PREFIXES: dict[str, Prefix] = {
    "code_interpreter": "ci_",
    "file_search": "fs_",
    "web_search": "ws_",
    "shell": "sh_",
    "mcp": "mcp_",
}


class FunctionProvider(Protocol):
    """One hosted tool, or several that belong together."""

    @property
    def name(self) -> str:
        """How logs and metrics call it."""
        ...

    def offer(self, tool: ToolDeclaration) -> Sequence[FunctionSpec] | None:
        """What a model is told of a declared tool; None where that is another provider's."""
        ...

    async def prepare(self, tool: ToolDeclaration, param: str, context: ToolContext) -> Workbench:
        """Make an offered tool ready for a response; `ApiError` where that cannot be."""
        ...

    def routes(self) -> Sequence[Any]:
        """HTTP routes of its own, for the server to mount."""
        ...

    async def aclose(self) -> None:
        """Let go of everything."""
        ...


class ProviderCollision(Exception):
    """Two providers claim the same name."""


class Registry:
    """All providers. What one of them offers, no other may."""

    def __init__(self, providers: Iterable[FunctionProvider] = ()) -> None:
        self._providers: dict[str, FunctionProvider] = {}
        for provider in providers:
            self.register(provider)

    def register(self, provider: FunctionProvider) -> None:
        """Add one. A name that is taken is an error at start, not a surprise later."""
        if provider.name in self._providers:
            raise ProviderCollision(f"two tool providers are called {provider.name!r}")
        self._providers[provider.name] = provider

    @property
    def providers(self) -> tuple[FunctionProvider, ...]:
        return tuple(self._providers.values())

    def offer(self, tool: ToolDeclaration) -> Sequence[FunctionSpec] | None:
        found = self._offering(tool)
        return found[1] if found else None

    def _offering(self, tool: ToolDeclaration) -> tuple[FunctionProvider, Sequence[FunctionSpec]] | None:
        offers = [(one, offered) for one in self.providers if (offered := one.offer(tool)) is not None]
        if len(offers) > 1:
            names = " and ".join(repr(one.name) for one, _ in offers)
            raise ProviderCollision(f"both {names} offer {tool_type(tool)!r}: enable one of them")
        return offers[0] if offers else None

    async def prepare(self, tool: ToolDeclaration, param: str, context: ToolContext) -> Workbench:
        found = self._offering(tool)
        if found is None:
            raise invalid(f"Tool type '{tool_type(tool)}' is not available on this server.", param=f"{param}.type")
        provider = found[0]
        return Guarded(provider.name, tool, await provider.prepare(tool, param, context))

    async def aclose(self) -> None:
        """Close every provider, also when some of them fail at it."""
        for provider in self.providers:
            try:
                await provider.aclose()
            except Exception:  # a provider's own code, and the others are to be closed too
                _logger.exception("provider %s did not close", provider.name)


class Guarded:
    """The bench of a provider. A call that it cannot begin is one that fails, and no dead response."""

    def __init__(self, name: str, tool: ToolDeclaration, bench: Workbench) -> None:
        self._name = name
        self._tool = tool
        self._bench = bench

    @property
    def takes_files(self) -> bool:
        return self._bench.takes_files

    def describe(self, spec: FunctionSpec) -> FunctionSpec:
        return self._bench.describe(spec)

    async def open(self, name: str, call_id: str) -> HostedCall:
        try:
            return await self._bench.open(name, call_id)
        except Exception:  # a provider's own code; the log knows what happened, the model that it did
            _logger.exception("provider %s could not begin a call", self._name)
            return BrokenCall(self._tool, "The tool could not be started. Answer without it, or try again.")

    def annotate(self, text: str) -> Sequence[Annotation]:
        return self._bench.annotate(text)


class BrokenCall:
    """A call that fails as soon as it is run."""

    def __init__(self, declaration: ToolDeclaration, reason: str) -> None:
        kind = tool_type(declaration)
        self._reason = reason
        self._item = {"id": new_id(_PREFIXES.get(kind, "fc_")), "type": f"{kind}_call", "status": "in_progress"}

    @property
    def item(self) -> dict[str, Any]:
        return self._item

    def opening(self) -> Sequence[Progress]:
        return ()

    def write(self, delta: str) -> Sequence[Progress]:
        _ = delta
        return ()

    async def run(self) -> AsyncIterator[Progress | ToolDone]:
        yield self.failed(self._reason)

    def failed(self, reason: str) -> ToolDone:
        return ToolDone({**self._item, "status": "failed"}, reason)
