"""Brave Search: `GET /res/v1/web/search` with a subscription token."""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from antwort.api.tools import UserLocation
from antwort.tools.builtins.websearch.engines.http_api import EngineApi, OnlineEngine, restricted_to
from antwort.tools.builtins.websearch.engines.port import SearchQuery, SearchResult

URL: Final = "https://api.search.brave.com"
_MAX_RESULTS: Final = 20
_MAX_QUERY: Final = 400


class _Found(Struct):
    url: str
    title: str = ""
    description: str = ""
    extra_snippets: list[str] = field(default_factory=list[str])


class _Web(Struct):
    results: list[_Found] = field(default_factory=list[_Found])


class _Answer(Struct):
    web: _Web | None = None


class BraveEngine(OnlineEngine):
    """Brave Search."""

    def __init__(self, key: str, *, url: str = URL, timeout: float = 10.0) -> None:
        super().__init__(EngineApi(url, name="brave", headers={"x-subscription-token": key}, timeout=timeout))

    async def search(self, query: SearchQuery) -> list[SearchResult]:
        params = {
            "q": restricted_to(query.text, query.domains)[:_MAX_QUERY],
            "count": str(min(query.max_results, _MAX_RESULTS)),
            "text_decorations": "false",  # otherwise the texts contain HTML
            "result_filter": "web",
        }
        if query.location is not None and query.location.country is not None:
            params["country"] = query.location.country.upper()
        answer = await self._api.get("/res/v1/web/search", params, _Answer, **_location_headers(query.location))
        results = answer.web.results if answer.web else []
        return [
            SearchResult(one.url, one.title, "\n".join([one.description, *one.extra_snippets]))
            for one in results[: query.max_results]
        ]


def _location_headers(location: UserLocation | None) -> dict[str, str]:
    if location is None:
        return {}
    fields = {
        "x_loc_city": location.city,
        "x_loc_state_name": location.region,
        "x_loc_country": location.country,
        "x_loc_timezone": location.timezone,
    }
    # Header values are ASCII; a name in another script is left out.
    return {name: value for name, value in fields.items() if value and value.isascii() and value.isprintable()}
