from __future__ import annotations

import pytest

from antwort.tools.builtins.websearch.engines import SearchQuery, SearxngEngine

pytestmark = pytest.mark.anyio


async def test_the_request_is_that_of_the_json_api(api):
    engine = SearxngEngine(f"{api.url}/")
    await engine.search(SearchQuery(text="täa & site", domains=("tea.example",)))
    await engine.aclose()
    (request,) = api.requests

    assert request.path == "/search"
    assert request.query == {"q": "täa & site site:tea.example", "format": "json", "categories": "general"}
    assert "authorization" not in request.headers
    assert request.headers["accept-encoding"] == "identity"
