"""Provider of the web search: opens the engine of the configuration, and prepares the tool for a response."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from antwort.api.tools import (
    DatedWebSearchPreviewTool,
    DatedWebSearchTool,
    ToolDeclaration,
    WebSearchPreviewTool,
    WebSearchTool,
)
from antwort.config import Config
from antwort.containers.sandboxes.port import Sandboxes
from antwort.engine.ports import ToolContext
from antwort.net.fetch import Fetcher
from antwort.tools.builtins.websearch.domains import AllowedDomains, allowed_domains
from antwort.tools.builtins.websearch.engines import GuardedEngine, SearchQuery, open_engine
from antwort.tools.builtins.websearch.extraction import PageExtractor
from antwort.tools.builtins.websearch.pages import PageCache, PageReader
from antwort.tools.builtins.websearch.prepared import PreparedWebSearch
from antwort.tools.builtins.websearch.types import BUDGETS, NAME, TOOL_TYPES
from antwort.tools.registry import ProviderDefaults

_NOT_CONFIGURED: Final = "off: no search engine is configured in providers.web_search.engine"


class OpenedWebSearch(Struct, frozen=True):
    """The provider, or None where the web search is off; and a description for the startup banner."""

    provider: WebSearchProvider | None
    description: str


class WebSearchProvider(ProviderDefaults):
    """`FunctionProvider` of the web search. It has no metrics: calls are spans, and responses have `tool_usage`."""

    name = NAME
    tools = TOOL_TYPES

    def __init__(self, engine: GuardedEngine, reader: PageReader, cache: PageCache) -> None:
        self._engine = engine
        self._reader = reader
        self._cache = cache

    async def aclose(self) -> None:
        await self._engine.aclose()
        await self._cache.aclose()

    async def prepare(self, tool: ToolDeclaration, param: str, context: ToolContext) -> PreparedWebSearch:
        assert isinstance(  # noqa: S101 - the only types in `tools`
            tool, (WebSearchTool, DatedWebSearchTool, WebSearchPreviewTool, DatedWebSearchPreviewTool)
        )
        domains, is_live = AllowedDomains(), True
        if isinstance(tool, (WebSearchTool, DatedWebSearchTool)):
            is_live = tool.external_web_access is not False
            if tool.filters is not None and tool.filters.allowed_domains is not None:
                domains = allowed_domains(tool.filters.allowed_domains, f"{param}.filters.allowed_domains")
        budget = BUDGETS[tool.search_context_size or "medium"]
        options = SearchQuery(
            text="",
            max_results=budget.results,
            max_text=budget.result_text,
            domains=domains.domains,
            location=tool.user_location,
        )
        return PreparedWebSearch(self._engine, self._reader, self._cache, context, options, budget, is_live=is_live)


async def open_web_search(
    config: Config, sandboxes: Sandboxes | None, environment: Mapping[str, str], state: Path, fetcher: Fetcher
) -> OpenedWebSearch:
    """Open the web search of the configuration. `state` is the directory of its index and its cache."""
    settings = config.providers.web_search
    if settings.enabled is False:
        return OpenedWebSearch(None, "off, as the configuration says")
    if settings.engine is None:
        return OpenedWebSearch(None, _NOT_CONFIGURED)
    extractor = None
    if sandboxes is not None:
        extractor = PageExtractor(sandboxes, memory_limit=config.containers.tiers[0])
    opened = await open_engine(settings, state, environment, extractor)
    engine = GuardedEngine(opened, name=settings.engine, wait_timeout=settings.timeout)
    cache = PageCache(state / "cache", settings.cache)
    reader = PageReader(engine, cache, fetcher, extractor)
    return OpenedWebSearch(WebSearchProvider(engine, reader, cache), _description(engine, settings.engine, extractor))


def _description(engine: GuardedEngine, name: str, extractor: PageExtractor | None) -> str:
    if engine.is_offline:
        html = (
            ""
            if extractor is not None
            else "; HTML and PDF files are left out, because there is no sandbox to read them in"
        )
        return f"saved pages of a folder, without network{html}"
    if extractor is None:
        return f"{name}; pages are not opened, because there is no sandbox to read them in"
    return f"{name}; pages are read in sandboxes"
