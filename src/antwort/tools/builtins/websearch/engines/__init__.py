"""Search engines: SearXNG, Brave, Tavily and Exa over HTTP, and a local one over a folder of saved pages."""

from __future__ import annotations

from antwort.tools.builtins.websearch.engines.brave import BraveEngine
from antwort.tools.builtins.websearch.engines.exa import ExaEngine
from antwort.tools.builtins.websearch.engines.factory import open_engine
from antwort.tools.builtins.websearch.engines.guarded import GuardedEngine
from antwort.tools.builtins.websearch.engines.local import LocalEngine
from antwort.tools.builtins.websearch.engines.port import (
    SavedPage,
    SearchEngine,
    SearchFailed,
    SearchQuery,
    SearchResult,
)
from antwort.tools.builtins.websearch.engines.searxng import SearxngEngine
from antwort.tools.builtins.websearch.engines.tavily import TavilyEngine

__all__ = [
    "BraveEngine",
    "ExaEngine",
    "GuardedEngine",
    "LocalEngine",
    "SavedPage",
    "SearchEngine",
    "SearchFailed",
    "SearchQuery",
    "SearchResult",
    "SearxngEngine",
    "TavilyEngine",
    "open_engine",
]
