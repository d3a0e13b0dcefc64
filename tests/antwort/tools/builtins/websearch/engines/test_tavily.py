from __future__ import annotations

import pytest
from fake_search_api import KEY

from antwort.tools.builtins.websearch.engines import SearchQuery, TavilyEngine

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("max_text, depth", [(400, "basic"), (2500, "advanced")])
async def test_the_request_has_the_key_and_the_domains(api, max_text, depth):
    engine = TavilyEngine(KEY, url=api.url)
    await engine.search(SearchQuery(text="tea", max_results=50, max_text=max_text, domains=("tea.example",)))
    await engine.aclose()
    (request,) = api.requests

    assert (request.path, request.headers["authorization"]) == ("/search", f"Bearer {KEY}")
    domains = ["tea.example"]
    assert request.body == {"query": "tea", "max_results": 20, "search_depth": depth, "include_domains": domains}
