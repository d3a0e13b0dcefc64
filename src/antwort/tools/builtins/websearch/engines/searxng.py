"""SearXNG, a metasearch engine that operators run themselves: its JSON API, `GET /search?format=json`.

`search.formats` in its `settings.yml` must contain `json`; otherwise it refuses with status 403.
"""

from __future__ import annotations

from msgspec import Struct, field

from antwort.tools.builtins.websearch.engines.http_api import EngineApi, OnlineEngine, restricted_to
from antwort.tools.builtins.websearch.engines.port import SearchQuery, SearchResult


class _Found(Struct):
    url: str | None = None
    title: str | None = None
    content: str | None = None


class _Answer(Struct):
    results: list[_Found] = field(default_factory=list[_Found])


class SearxngEngine(OnlineEngine):
    """A SearXNG instance. With a key, it is sent as a bearer token, for a proxy in front of it."""

    def __init__(self, url: str, *, key: str | None = None, timeout: float = 10.0) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        super().__init__(EngineApi(url, name="searxng", headers=headers, timeout=timeout))

    async def search(self, query: SearchQuery) -> list[SearchResult]:
        params = {"q": restricted_to(query.text, query.domains), "format": "json", "categories": "general"}
        answer = await self._api.get("/search", params, _Answer)
        found = [SearchResult(one.url, one.title or "", one.content or "") for one in answer.results if one.url]
        return found[: query.max_results]
