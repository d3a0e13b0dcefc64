from __future__ import annotations

import pytest
from fake_search_api import KEY

from antwort.api.tools import UserLocation
from antwort.tools.builtins.websearch.engines import ExaEngine, SearchQuery

pytestmark = pytest.mark.anyio


async def test_the_request_has_the_key_the_domains_and_the_country(api):
    engine = ExaEngine(KEY, url=api.url)
    location = UserLocation(country="us")
    await engine.search(SearchQuery(text="tea", max_text=77, domains=("tea.example",), location=location))
    await engine.aclose()
    (request,) = api.requests

    assert (request.path, request.headers["x-api-key"]) == ("/search", KEY)
    assert request.body == {
        "query": "tea",
        "numResults": 10,
        "contents": {"text": {"maxCharacters": 77}},
        "includeDomains": ["tea.example"],
        "userLocation": "US",
    }
