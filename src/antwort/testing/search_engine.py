"""Conformance suite of the `SearchEngine` port. Needs no test framework.

A subclass defines how to make an engine that finds these pages. pytest collects the tests of the subclass; with
`unittest.TestCase` as a second base, so does unittest.

    from antwort.testing.search_engine import SearchEngineConformance

    class TestMyEngine(SearchEngineConformance):
        def make(self, pages):
            return MyEngine(a_server_with(pages))

Each test has its own event loop; `make` is called before the loop runs, as at the start of a server. An engine whose
service can be made to fail overrides `make_failing`, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from antwort.api.tools import UserLocation
from antwort.testing.checks import check, check_equal, not_none
from antwort.tools.builtins.websearch.domains import AllowedDomains, host_of
from antwort.tools.builtins.websearch.engines.port import (
    SavedPage,
    SearchEngine,
    SearchFailed,
    SearchQuery,
    SearchResult,
)

_TIMEOUT_SECONDS = 20.0
_LONG = "The history of coffee has many chapters. " * 200

PAGES: tuple[SavedPage, ...] = (
    SavedPage("https://tea.example/oolong", "Oolong", "Oolong is a tea between green and black."),
    SavedPage("https://www.tea.example/grüner", "Grüner Tee", "Sencha ist ein grüner Tee aus Japan: 煎茶 🍵."),
    SavedPage("https://coffee.example/history?part=1", "Coffee", _LONG),
    SavedPage("https://other.example/", "Tea and coffee", "Oolong beside coffee."),
)
"""The pages that an engine of the suite finds. The host of the last one is no subdomain of the others."""


class SearchEngineConformance:
    """The requirements of the `SearchEngine` port; a subclass makes the engine."""

    def make(self, pages: Sequence[SavedPage]) -> SearchEngine:
        """An engine that finds exactly these pages, each by the words of its title and its text."""
        raise NotImplementedError

    def make_failing(self) -> SearchEngine | None:
        """An engine whose service is down; None if it has no service."""
        return None

    def test_a_page_is_found_by_a_word(self) -> None:
        found = self._search("oolong")

        check_equal({one.url for one in found}, {PAGES[0].url, PAGES[3].url})
        check_equal({one.title for one in found}, {PAGES[0].title, PAGES[3].title})
        check(all("Oolong" in one.text for one in found), "results have a text about the page")

    def test_words_and_texts_of_any_script(self) -> None:
        (found,) = self._search("sencha")

        check_equal((found.title, "煎茶 🍵" in found.text), ("Grüner Tee", True))

    def test_nothing_found_is_no_error(self) -> None:
        check_equal(self._search("xylophone"), [])

    def test_operators_and_quotes_in_a_query_are_text(self) -> None:
        for text in (
            'oolong"',
            "oolong AND (",
            "oolong*",
            "NEAR(oolong",
            "'; DROP TABLE documents; -- oolong",
            "oolong:",
        ):
            check(PAGES[0].url in {one.url for one in self._search(text)}, f"{text!r} must find the page")
        for text in ('"', "()", "*", "—", " "):
            self._search(text)

    def test_no_more_results_than_wanted(self) -> None:
        check_equal(len(self._search("oolong", max_results=1)), 1)

    def test_a_hint_about_domains_keeps_their_pages(self) -> None:
        """The engine may ignore the domains; what it must not do is to leave out what is allowed."""
        found = {one.url for one in self._search("oolong", domains=("tea.example", "never.example"))}
        allowed = AllowedDomains(("tea.example",))

        check_equal([url for url in found if allowed.allows(host_of(url))], [PAGES[0].url])

    def test_a_location_is_accepted(self) -> None:
        location = UserLocation(city="Zürich", country="ch", region="Zürich", timezone="Europe/Zurich")

        check_equal(len(self._search("oolong", location=location)), 2)

    def test_searches_at_the_same_time(self) -> None:
        async def run(engine: SearchEngine) -> list[list[SearchResult]]:
            texts = ("oolong", "coffee", "sencha", "xylophone")
            return await asyncio.gather(*(engine.search(SearchQuery(text=text)) for text in texts))

        check_equal([len(found) for found in self._run(run)], [2, 2, 1, 0])

    def test_an_engine_with_pages_of_its_own_returns_them_as_they_are(self) -> None:
        async def run(engine: SearchEngine) -> list[SavedPage | None]:
            return [await engine.page(page.url) for page in (PAGES[2], PAGES[0])] + [
                await engine.page("https://never.example/")
            ]

        async def is_offline(engine: SearchEngine) -> bool:
            return engine.is_offline

        coffee, oolong, unknown = self._run(run)
        check_equal(unknown, None)
        if self._run(is_offline):
            check_equal((not_none(oolong).title, not_none(oolong).text), (PAGES[0].title, PAGES[0].text))
            check_equal(not_none(coffee).text.strip(), _LONG.strip())

    def test_a_service_that_is_down_is_an_outage(self) -> None:
        engine = self.make_failing()
        if engine is None:
            return

        async def run() -> None:
            try:
                await engine.search(SearchQuery(text="oolong"))
            finally:
                await engine.aclose()

        raised: SearchFailed | None = None
        try:
            _run(run())
        except SearchFailed as error:
            raised = error
        failure = not_none(raised)
        check(failure.is_outage, "a service that is down is an outage")
        check("://" not in str(failure), "the message must not contain an address")

    def test_closing_twice_is_no_error(self) -> None:
        async def run(engine: SearchEngine) -> None:
            await engine.search(SearchQuery(text="oolong"))
            await engine.aclose()

        self._run(run)

    def _search(self, text: str, **options: Any) -> list[SearchResult]:
        return self._run(lambda engine: engine.search(SearchQuery(text=text, **options)))

    def _run(self, work: Callable[[SearchEngine], Coroutine[Any, Any, Any]]) -> Any:
        engine = self.make(PAGES)

        async def run() -> Any:
            try:
                return await work(engine)
            finally:
                await engine.aclose()

        return _run(run())


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            return await work

    return asyncio.run(bounded())
