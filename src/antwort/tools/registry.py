"""Registry of hosted tools: maps each tool type to the provider that runs it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from antwort.api.tools import ToolDeclaration, tool_type
from antwort.engine.ports import PreparedTool, ToolContext

_logger = logging.getLogger(__name__)


class FunctionProvider(Protocol):
    """Runs one hosted tool, or several that belong together."""

    @property
    def name(self) -> str:
        """Its name in logs and metrics."""
        ...

    @property
    def tools(self) -> Sequence[str]:
        """The types of the tools that it runs, as requests declare them. No other provider may run one of them."""
        ...

    async def prepare(self, tool: ToolDeclaration, param: str, context: ToolContext) -> PreparedTool:
        """Prepare a declared tool, of one of these types, for a response.

        An `ApiError` is returned to the client as it is; any other exception becomes a 503 that names the tool.
        """
        ...

    def routes(self) -> Sequence[Any]:
        """HTTP routes of its own, for the server to mount."""
        ...

    def metrics(self) -> Sequence[Collector]:
        """Metrics of its own, for `/metrics`. Called once, at start."""
        ...

    async def aclose(self) -> None:
        """Release all resources."""
        ...


class ProviderDefaults:
    """The rest of a `FunctionProvider` that has no routes, no metrics, and nothing to release."""

    def routes(self) -> Sequence[Any]:
        return ()

    def metrics(self) -> Sequence[Collector]:
        return ()

    async def aclose(self) -> None:
        pass


class ProviderCollision(Exception):
    """Two providers claim the same name, tool type or metric."""


class ToolRegistry:
    """All providers. Two providers of one tool type are an error at start."""

    def __init__(self, providers: Iterable[FunctionProvider] = ()) -> None:
        self._providers: dict[str, FunctionProvider] = {}
        self._by_type: dict[str, FunctionProvider] = {}
        for provider in providers:
            self.register(provider)

    def register(self, provider: FunctionProvider) -> None:
        """Add a provider; `ProviderCollision` where its name or one of its tool types is registered already."""
        if provider.name in self._providers:
            raise ProviderCollision(f"two tool providers are called {provider.name!r}")
        for tool in provider.tools:
            if (other := self._by_type.get(tool)) is not None:
                raise ProviderCollision(f"both {other.name!r} and {provider.name!r} run {tool!r}: enable one of them")
        self._providers[provider.name] = provider
        self._by_type |= dict.fromkeys(provider.tools, provider)

    @property
    def providers(self) -> tuple[FunctionProvider, ...]:
        return tuple(self._providers.values())

    def register_metrics(self, collectors: CollectorRegistry) -> None:
        """Register the metrics of all providers; `ProviderCollision` where a metric name is taken."""
        for provider in self.providers:
            for collector in provider.metrics():
                try:
                    collectors.register(collector)
                except ValueError as error:
                    raise ProviderCollision(f"metrics of {provider.name!r}: {error}") from error

    @property
    def tool_types(self) -> Sequence[str]:
        return sorted(self._by_type)

    def supports(self, tool: ToolDeclaration) -> bool:
        return tool_type(tool) in self._by_type

    async def prepare(self, tool: ToolDeclaration, param: str, context: ToolContext) -> PreparedTool:
        return await self._by_type[tool_type(tool)].prepare(tool, param, context)

    async def aclose(self) -> None:
        """Close every provider, also after one that raises."""
        for provider in self.providers:
            try:
                await provider.aclose()
            except Exception:  # code of a provider
                _logger.exception("provider %s could not be closed", provider.name)
