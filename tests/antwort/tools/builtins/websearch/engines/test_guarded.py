from __future__ import annotations

import asyncio

import pytest
from waiting import wait_until_async

from antwort.tools.builtins.websearch.engines import GuardedEngine, SearchFailed, SearchQuery, SearchResult
from antwort.tools.builtins.websearch.engines.guarded import MAX_CONCURRENT, MAX_URL
from antwort.tools.builtins.websearch.results import MAX_TITLE

pytestmark = pytest.mark.anyio


class FakeEngine:
    """Returns the given results, or raises; counts the searches that run."""

    is_offline = False

    def __init__(self, *results: SearchResult, error: Exception | None = None) -> None:
        self.results = list(results)
        self.error = error
        self.searches = 0
        self.running = 0
        self.most = 0
        self.go = asyncio.Event()
        self.go.set()

    async def search(self, query):
        self.searches += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.go.wait()
            if self.error is not None:
                raise self.error
            return self.results
        finally:
            self.running -= 1

    async def page(self, url):
        return None

    async def aclose(self):
        pass


def result(url: str, title: str = "T", text: str = "x") -> SearchResult:
    return SearchResult(url, title, text)


async def test_results_are_checked():
    engine = GuardedEngine(
        FakeEngine(
            result("https://a.example", "  a\n\x00title  ", "x" * 5000),
            result("https://A.example:443/#x"),
            result("javascript:alert(1)"),
            result("https://b.example/", ""),
            result("file:///etc/passwd"),
            result("https://other.test/"),
            result("https://c.example/" + "x" * MAX_URL),
            result("https://d.example/\u202e"),
            result("", "T"),
            result("https://e.example/", "x" * 999, "\ud800"),
            result("https://f.example/"),
        ),
        name="fake",
    )
    query = SearchQuery(text="x", max_results=4, max_text=10, domains=("example",))
    found = await engine.search(query, tenant="a")

    assert [one.url for one in found] == [f"https://{name}.example/" for name in "ab"] + [
        found[2].url,
        "https://e.example/",
    ]
    assert found[2].url.startswith("https://d.example/%E2%80%AE")
    assert [one.title for one in found] == ["a title", "b.example", "T", "x" * MAX_TITLE]
    assert (found[0].text, found[3].text) == ("x" * 10, "")


async def test_outages_open_the_circuit_breaker_of_the_tenant():
    inner = FakeEngine(error=SearchFailed("down", is_outage=True))
    engine = GuardedEngine(inner, name="fake")
    for _ in range(5):
        with pytest.raises(SearchFailed, match=r"^down$"):
            await engine.search(SearchQuery(text="x"), tenant="a")
    with pytest.raises(SearchFailed, match="failed repeatedly"):
        await engine.search(SearchQuery(text="x"), tenant="a")
    assert inner.searches == 5
    inner.error = None

    assert await engine.search(SearchQuery(text="x"), tenant="b") == []


async def test_refusals_open_no_circuit_breaker():
    inner = FakeEngine(error=SearchFailed("wrong key"))
    engine = GuardedEngine(inner, name="fake")
    for _ in range(9):
        with pytest.raises(SearchFailed, match="wrong key"):
            await engine.search(SearchQuery(text="x"), tenant="a")

    assert inner.searches == 9


async def test_searches_are_limited_and_the_others_wait():
    inner = FakeEngine()
    inner.go.clear()
    engine = GuardedEngine(inner, name="fake", wait_timeout=30)
    async with asyncio.TaskGroup() as tasks:
        for number in range(3 * MAX_CONCURRENT):
            tasks.create_task(engine.search(SearchQuery(text="x"), tenant=str(number % 2)))
        await wait_until_async(lambda: inner.running == MAX_CONCURRENT)
        inner.go.set()

    assert (inner.most, inner.searches) == (MAX_CONCURRENT, 3 * MAX_CONCURRENT)


async def test_a_search_that_waits_too_long_fails():
    inner = FakeEngine()
    inner.go.clear()
    engine = GuardedEngine(inner, name="fake", wait_timeout=0.05)
    running = [asyncio.create_task(engine.search(SearchQuery(text="x"), tenant="a")) for _ in range(MAX_CONCURRENT)]
    await wait_until_async(lambda: inner.running == MAX_CONCURRENT)
    with pytest.raises(SearchFailed, match="Too many searches"):
        await engine.search(SearchQuery(text="x"), tenant="b")
    inner.go.set()
    await asyncio.gather(*running)


async def test_a_probe_that_gets_no_slot_does_not_keep_the_circuit_breaker_open():
    now = [0.0]
    inner = FakeEngine(error=SearchFailed("down", is_outage=True))
    engine = GuardedEngine(inner, name="fake", wait_timeout=0.05, clock=lambda: now[0])
    for _ in range(5):
        with pytest.raises(SearchFailed, match=r"^down$"):
            await engine.search(SearchQuery(text="x"), tenant="a")
    inner.error, now[0] = None, 60.0
    inner.go.clear()
    running = [asyncio.create_task(engine.search(SearchQuery(text="x"), tenant="b")) for _ in range(MAX_CONCURRENT)]
    await wait_until_async(lambda: inner.running == MAX_CONCURRENT)
    with pytest.raises(SearchFailed, match="Too many searches"):
        await engine.search(SearchQuery(text="x"), tenant="a")
    inner.go.set()
    await asyncio.gather(*running)

    async with asyncio.timeout(5):
        assert await engine.search(SearchQuery(text="x"), tenant="a") == []
