"""Selects the search engine by the configuration; an impossible configuration is an error at start."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from antwort.config import ConfigError, WebSearchSettings
from antwort.tools.builtins.websearch.document_index import DocumentIndex
from antwort.tools.builtins.websearch.engines.brave import URL as BRAVE_URL
from antwort.tools.builtins.websearch.engines.brave import BraveEngine
from antwort.tools.builtins.websearch.engines.exa import URL as EXA_URL
from antwort.tools.builtins.websearch.engines.exa import ExaEngine
from antwort.tools.builtins.websearch.engines.local import LocalEngine
from antwort.tools.builtins.websearch.engines.port import SearchEngine
from antwort.tools.builtins.websearch.engines.searxng import SearxngEngine
from antwort.tools.builtins.websearch.engines.tavily import URL as TAVILY_URL
from antwort.tools.builtins.websearch.engines.tavily import TavilyEngine
from antwort.tools.builtins.websearch.extraction import PageExtractor

_SECTION: Final = "providers.web_search"


async def open_engine(
    settings: WebSearchSettings, state: Path, environment: Mapping[str, str], extractor: PageExtractor | None
) -> SearchEngine:
    """The engine of the configuration. `state` is the directory of its index."""
    key = _key(settings, environment)
    match settings.engine:
        case "local":
            folder = Path(settings.folder or "")
            if not await asyncio.to_thread(folder.is_dir):
                raise ConfigError(f"{_SECTION}.folder: {folder} is not a directory.")
            index = await asyncio.to_thread(DocumentIndex, state / "folder.db")
            return LocalEngine(folder, index, extractor, wait=settings.timeout)
        case "searxng":
            return SearxngEngine(settings.url or "", key=key, timeout=settings.timeout)
        case "brave":
            return BraveEngine(key or "", url=settings.url or BRAVE_URL, timeout=settings.timeout)
        case "tavily":
            return TavilyEngine(key or "", url=settings.url or TAVILY_URL, timeout=settings.timeout)
        case "exa":
            return ExaEngine(key or "", url=settings.url or EXA_URL, timeout=settings.timeout)
        case None:
            raise ConfigError(f"{_SECTION}.engine: no search engine is configured.")


def _key(settings: WebSearchSettings, environment: Mapping[str, str]) -> str | None:
    if settings.api_key_env is None:
        return None
    key = environment.get(settings.api_key_env, "").strip()
    if not key:
        raise ConfigError(f"{_SECTION}.api_key_env: the variable {settings.api_key_env} is not set.")
    if not key.isascii() or not key.isprintable():
        raise ConfigError(f"{_SECTION}.api_key_env: the value of {settings.api_key_env} is not a key.")
    return key
