from __future__ import annotations

import pytest
from fake_search_api import KEY

from antwort.tools.builtins.websearch.engines import BraveEngine, SearchFailed, SearchQuery, SearxngEngine
from antwort.tools.builtins.websearch.engines.http_api import restricted_to

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "word, message, is_outage",
    [
        ("outage", "failed with status 503", True),
        ("throttled", "has reached its rate limit", True),
        ("quota", "has reached its quota", False),
        ("forbidden", "its operator must check the key", False),
        ("teapot", "refused the search with status 418", False),
        ("moved", "refused the search with status 302", False),
        ("garbage", "is not valid", True),
        ("odd", "is not valid", True),
        ("huge", "too large", True),
        ("cut", "cannot be reached", True),
        ("silent", "did not answer within 0.3 s|does not answer", True),
    ],
)
async def test_every_fault_is_a_failed_search_without_the_key(api, word, message, is_outage, caplog, capsys):
    engine = BraveEngine(KEY, url=api.url, timeout=5 if word != "silent" else 0.3)
    with pytest.raises(SearchFailed, match=message) as caught:
        await engine.search(SearchQuery(text=word))
    await engine.aclose()

    assert caught.value.is_outage is is_outage
    written = capsys.readouterr()
    assert KEY not in f"{caught.value}{caplog.text}{written.out}{written.err}"
    assert len(api.requests) == 1


async def test_a_redirect_is_not_followed_with_the_key(api):
    engine = SearxngEngine(api.url, key=KEY)
    with pytest.raises(SearchFailed):
        await engine.search(SearchQuery(text="moved"))
    await engine.aclose()

    assert [one.headers["authorization"] for one in api.requests] == [f"Bearer {KEY}"]


def test_domains_as_operators():
    assert restricted_to("tea", ()) == "tea"
    assert restricted_to("tea", ("a.example",)) == "tea site:a.example"
    assert restricted_to("tea", ("a.example", "b.example")) == "tea (site:a.example OR site:b.example)"
    assert restricted_to("tea", tuple(f"{n}.example" for n in range(50))).count("site:") == 10
