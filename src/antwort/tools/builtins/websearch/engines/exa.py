"""Exa: `POST /search` with a key, and the text of each result."""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from antwort.tools.builtins.websearch.engines.http_api import EngineApi, OnlineEngine
from antwort.tools.builtins.websearch.engines.port import SearchQuery, SearchResult

URL: Final = "https://api.exa.ai"
_MAX_RESULTS: Final = 25


class _Found(Struct):
    url: str
    title: str | None = None
    text: str | None = None


class _Answer(Struct):
    results: list[_Found] = field(default_factory=list[_Found])


class ExaEngine(OnlineEngine):
    """Exa."""

    def __init__(self, key: str, *, url: str = URL, timeout: float = 10.0) -> None:
        super().__init__(EngineApi(url, name="exa", headers={"x-api-key": key}, timeout=timeout))

    async def search(self, query: SearchQuery) -> list[SearchResult]:
        body: dict[str, object] = {
            "query": query.text,
            "numResults": min(query.max_results, _MAX_RESULTS),
            "contents": {"text": {"maxCharacters": query.max_text}},
        }
        if query.domains:
            body["includeDomains"] = list(query.domains)
        if query.location is not None and query.location.country is not None:
            body["userLocation"] = query.location.country.upper()
        answer = await self._api.post("/search", body, _Answer)
        found = answer.results[: query.max_results]
        return [SearchResult(one.url, one.title or "", one.text or "") for one in found]
