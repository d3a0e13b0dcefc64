from __future__ import annotations

import pytest
from fake_search_api import KEY

from antwort.api.tools import UserLocation
from antwort.tools.builtins.websearch.engines import BraveEngine, SearchQuery

pytestmark = pytest.mark.anyio


async def test_the_request_has_the_key_and_the_location(api):
    engine = BraveEngine(KEY, url=api.url)
    location = UserLocation(city="Berlin", country="de", region="Brandenburg\r\nx: y", timezone="Europe/Berlin")
    await engine.search(SearchQuery(text="tea " * 200, max_results=50, location=location))
    await engine.search(SearchQuery(text="tea", location=UserLocation(city="Zürich")))
    await engine.aclose()
    first, second = api.requests

    assert first.path == "/res/v1/web/search"
    assert first.headers["x-subscription-token"] == KEY
    assert first.headers["x-loc-city"] == "Berlin"
    assert first.headers["x-loc-timezone"] == "Europe/Berlin"
    assert (first.query["count"], first.query["country"], len(first.query["q"])) == ("20", "DE", 400)
    assert not {"x-loc-state-name", "x"} & set(first.headers)
    assert "x-loc-city" not in second.headers
