"""Tavily: `POST /search` with a bearer key."""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from antwort.tools.builtins.websearch.engines.http_api import EngineApi, OnlineEngine
from antwort.tools.builtins.websearch.engines.port import SearchQuery, SearchResult

URL: Final = "https://api.tavily.com"
_MAX_RESULTS: Final = 20
_LONG_TEXT: Final = 2000


class _Found(Struct):
    url: str
    title: str | None = None
    content: str | None = None


class _Answer(Struct):
    results: list[_Found] = field(default_factory=list[_Found])


class TavilyEngine(OnlineEngine):
    """Tavily."""

    def __init__(self, key: str, *, url: str = URL, timeout: float = 10.0) -> None:
        super().__init__(EngineApi(url, name="tavily", headers={"authorization": f"Bearer {key}"}, timeout=timeout))

    async def search(self, query: SearchQuery) -> list[SearchResult]:
        body: dict[str, object] = {
            "query": query.text,
            "max_results": min(query.max_results, _MAX_RESULTS),
            "search_depth": "advanced" if query.max_text >= _LONG_TEXT else "basic",
        }
        if query.domains:
            body["include_domains"] = list(query.domains)
        answer = await self._api.post("/search", body, _Answer)
        found = answer.results[: query.max_results]
        return [SearchResult(one.url, one.title or "", one.content or "") for one in found]
