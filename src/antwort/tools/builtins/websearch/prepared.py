"""The web search of one response: its sources, the pages that it opened, and the actions of its calls."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, zip_longest
from typing import Final

import msgspec

from antwort.engine.ports import HostedCall, TextAnnotator, ToolContext, ToolDefaults
from antwort.tools.builtins.websearch.call import HostedSearchCall, SearchOutcome
from antwort.tools.builtins.websearch.citations import CitationScanner
from antwort.tools.builtins.websearch.document_index import Document
from antwort.tools.builtins.websearch.domains import AllowedDomains, comparable_url
from antwort.tools.builtins.websearch.engines import (
    GuardedEngine,
    SavedPage,
    SearchFailed,
    SearchQuery,
    SearchResult,
)
from antwort.tools.builtins.websearch.pages import PageCache, PageReader, PageUnavailable
from antwort.tools.builtins.websearch.results import ShownResult, found_text, page_text, search_text
from antwort.tools.builtins.websearch.sources import Sources
from antwort.tools.builtins.websearch.types import (
    FindInPage,
    OpenPage,
    Search,
    SearchAction,
    TextBudget,
    function_specs,
)

_MAX_KEPT_PAGES: Final = 8
_PAGE_LOCKS: Final = 16
_NUMBER_RE: Final = re.compile(r"\[?(\d{1,6})\]?")


class PreparedWebSearch(ToolDefaults):
    """A `PreparedTool`. Without `is_live` nothing is requested from the engine or fetched from the web."""

    reads_files = False

    def __init__(
        self,
        engine: GuardedEngine,
        reader: PageReader,
        cache: PageCache,
        context: ToolContext,
        options: SearchQuery,
        budget: TextBudget,
        *,
        is_live: bool,
    ) -> None:
        self._engine = engine
        self._reader = reader
        self._cache = cache
        self._tenant = context.owner.tenant
        self._is_stored = context.is_stored
        self._options = options
        self._budget = budget
        self._domains = AllowedDomains(options.domains)
        self._is_live = is_live
        self._sources = Sources(context.history)
        self._pages: dict[str, SavedPage] = {}
        self._page_locks = tuple(asyncio.Lock() for _ in range(_PAGE_LOCKS))
        self.specs = function_specs(
            opens_pages=reader.opens_pages,
            domains=options.domains,
            location=options.location,
            is_live=is_live or engine.is_offline,
        )

    async def open(self, name: str, call_id: str, arguments: str) -> HostedCall:
        del call_id, arguments
        return HostedSearchCall(self, name)

    def annotator(self) -> TextAnnotator:
        return CitationScanner(self._sources)

    def lease(self) -> AbstractContextManager[object]:
        """Holds nothing."""
        return nullcontext()

    # ── the actions of the calls ─────────────────────────────────────────────────────────────────────────────────────

    async def perform(self, action: SearchAction) -> SearchOutcome:
        match action:
            case Search():
                return await self._search(action)
            case OpenPage():
                return await self._open_page(action)
            case FindInPage():
                return await self._find(action)

    async def _search(self, action: Search) -> SearchOutcome:
        """Search for all queries at once. It fails if all of them fail."""
        answers = await asyncio.gather(*(self._search_one(query) for query in action.queries))
        failures = [answer for answer in answers if isinstance(answer, SearchFailed)]
        problems = list(dict.fromkeys(map(str, failures)))
        found = [answer for answer in answers if not isinstance(answer, SearchFailed)]
        rejected = sum(failure.is_rejected for failure in failures)
        requests = len(answers) - rejected if self._uses_engine else 0
        if not found:
            reason = " ".join(problems)
            return SearchOutcome(action=action, text=f"The search failed. {reason}", has_failed=True, requests=requests)
        unique = {comparable_url(one.url): one for one in reversed(list(_alternating(found)))}
        best = list(reversed(unique.values()))[: self._budget.results]
        results = [ShownResult(self._sources.add(one.url, one.title), one.text) for one in best]
        if self._is_stored and self._uses_engine and not self._engine.is_offline and results:
            documents = [Document(one.source.url, one.source.title, one.text, is_page=False) for one in results]
            await self._cache.put(self._tenant, documents)
        return SearchOutcome(action=action, text=search_text(results, problems), results=results, requests=requests)

    @property
    def _uses_engine(self) -> bool:
        return self._is_live or self._engine.is_offline

    async def _search_one(self, text: str) -> list[SearchResult] | SearchFailed:
        """The results of a query, or why there are none."""
        options, budget = self._options, self._budget
        if not self._uses_engine:
            return await self._cache.search(
                self._tenant, text, limit=budget.results, max_text=budget.result_text, domains=options.domains
            )
        try:
            return await self._engine.search(msgspec.structs.replace(options, text=text), tenant=self._tenant)
        except SearchFailed as error:
            return error

    async def _open_page(self, action: OpenPage) -> SearchOutcome:
        action = msgspec.structs.replace(action, url=self._resolve(action.url))
        try:
            page = await self._page(action.url)
        except PageUnavailable as error:
            return SearchOutcome(action=action, text=str(error), has_failed=True)
        source = self._sources.add(page.url, page.title)
        text, shown = page_text(source, page.text, action.part, self._budget.page_text)
        return SearchOutcome(action=action, text=text, results=[ShownResult(source, shown)])

    async def _find(self, action: FindInPage) -> SearchOutcome:
        action = msgspec.structs.replace(action, url=self._resolve(action.url))
        try:
            page = await self._page(action.url)
        except PageUnavailable as error:
            return SearchOutcome(action=action, text=str(error), has_failed=True)
        source = self._sources.add(page.url, page.title)
        text, shown = await asyncio.to_thread(found_text, source, page.text, action.pattern)
        return SearchOutcome(action=action, text=text, results=[ShownResult(source, shown)])

    def _resolve(self, url: str) -> str:
        """The URL of a page that the model names by its number."""
        number = _NUMBER_RE.fullmatch(url)
        source = self._sources.by_number(int(number[1])) if number else None
        return url if source is None else source.url

    async def _page(self, url: str) -> SavedPage:
        """A page. The last ones stay open, so that finding a text in one does not fetch it again.

        Nor do two calls that run at the same time fetch it twice.
        """
        key = comparable_url(url)
        async with self._page_locks[hash(key) % _PAGE_LOCKS]:
            if key not in self._pages:
                page = await self._reader.read(
                    self._tenant, url, domains=self._domains, is_live=self._is_live, is_stored=self._is_stored
                )
                if len(self._pages) >= _MAX_KEPT_PAGES:
                    del self._pages[next(iter(self._pages))]
                self._pages[key] = page
            return self._pages[key]


def _alternating(found: list[list[SearchResult]]) -> Iterator[SearchResult]:
    """The first result of each query, then the second ones, and so on."""
    return (one for one in chain.from_iterable(zip_longest(*found)) if one is not None)
