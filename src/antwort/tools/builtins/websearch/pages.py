"""Pages: opened from the engine, from the cache of the tenant, or from the web; and the cache of what was retrieved.

The cache is one file per tenant. It serves `external_web_access: false`, and saves fetching a page again shortly after.
A response that is not stored adds nothing to it. Its failures are logged, and never fail a call.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from antwort.config import WebCacheSettings
from antwort.net.errors import QueueFull
from antwort.net.fair_semaphore import FairSemaphore
from antwort.net.fetch import FetchedPage, Fetcher, FetchError, FetchRefused
from antwort.net.fetch.fetcher import check_url
from antwort.tools.builtins.websearch.document_index import Document, DocumentIndex
from antwort.tools.builtins.websearch.domains import AllowedDomains, comparable_url, host_of
from antwort.tools.builtins.websearch.engines import GuardedEngine, SavedPage, SearchResult
from antwort.tools.builtins.websearch.extraction import ExtractionFailed, PageExtractor, is_readable
from antwort.tools.builtins.websearch.results import clean_title, excerpt, without_control_characters

T = TypeVar("T")

_logger = logging.getLogger(__name__)

_MAX_OPEN: Final = 32
MAX_FETCHES: Final = 16
"""Pages that are fetched and read at the same time."""
_MAX_QUEUE: Final = 256
_MAX_WAIT: Final = 60.0
_DIGEST: Final = 32


class PageUnavailable(Exception):
    """A page cannot be opened. The message may be shown to a model."""


class _TenantIndex:
    """The index of one tenant, opened in the thread of its first use."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = clock
        self._index: DocumentIndex | None = None
        self._opening = threading.Lock()
        self.lock = asyncio.Lock()
        """One thread works for a tenant at a time."""
        self.users = 0

    def run(self, work: Callable[[DocumentIndex], T]) -> T:
        """Blocks."""
        with self._opening:  # a cancelled call may still be opening it
            index = self._index = self._index or DocumentIndex(self._path, clock=self._clock)
        return work(index)

    def close(self) -> None:
        """Blocks until no thread works with it."""
        with self._opening:
            if self._index is not None:
                self._index.close()


class PageCache:
    """What was retrieved for each tenant, bounded in size and age. Tenants do not wait for each other."""

    def __init__(self, folder: Path, settings: WebCacheSettings, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._settings = settings
        self._clock = clock
        self._open: OrderedDict[str, _TenantIndex] = OrderedDict()
        """By tenant, the most recently used last."""

    async def get(self, tenant: str, url: str, *, max_age: float | None = None) -> Document | None:
        """A page, at most this old. Those that a URL redirects to are found by it, with their redirects."""
        document = await self._use(tenant, lambda index: index.get(comparable_url(url)))
        oldest = self._clock() - (self._settings.max_age if max_age is None else max_age)
        is_valid = document is not None and document.is_page and document.stored_at >= oldest
        return document if is_valid else None

    async def search(
        self, tenant: str, text: str, *, limit: int, max_text: int, domains: tuple[str, ...]
    ) -> list[SearchResult]:
        """A search in what was retrieved."""
        since = self._clock() - self._settings.max_age

        def find(index: DocumentIndex) -> list[SearchResult]:
            found = index.search(text, limit=limit, domains=domains, since=since)
            return [SearchResult(one.url, one.title, excerpt(one.text, text, max_text)) for one in found]

        return await self._use(tenant, find) or []

    async def put(self, tenant: str, documents: Sequence[Document], *, redirected_from: str | None = None) -> None:
        """Store documents. `redirected_from` is the URL that led, by its redirects, to the one of a single document."""
        settings = self._settings

        def store(index: DocumentIndex) -> None:
            index.put((host_of(document.url), document) for document in documents)
            if redirected_from is not None:
                index.put_redirect(redirected_from, documents[0].redirects)
            index.shrink(max_size=settings.max_bytes, max_age=settings.max_age)

        await self._use(tenant, store)

    @property
    def fresh_for(self) -> float:
        """Seconds for which a page is not fetched again."""
        return self._settings.fresh_for

    async def aclose(self) -> None:
        opened, self._open = list(self._open.values()), OrderedDict()
        for index in opened:
            await asyncio.to_thread(index.close)

    async def _use(self, tenant: str, work: Callable[[DocumentIndex], T]) -> T | None:
        """Work with the index of a tenant, one at a time; None if it fails."""
        index = self._open.get(tenant)
        if index is None:
            name = hashlib.sha256(tenant.encode()).hexdigest()[:_DIGEST]
            index = self._open[tenant] = _TenantIndex(self._folder / f"{name}.db", self._clock)
        self._open.move_to_end(tenant)
        index.users += 1
        try:
            async with index.lock:
                return await asyncio.to_thread(index.run, work)
        except (sqlite3.Error, OSError):
            _logger.exception("the cache of retrieved pages cannot be used")
            return None
        finally:
            index.users -= 1
            await self._close_idle()

    async def _close_idle(self) -> None:
        """Close the least recently used files above the limit."""
        while len(self._open) > _MAX_OPEN:
            idle = next((tenant for tenant, index in self._open.items() if not index.users), None)
            if idle is None:
                return
            await asyncio.to_thread(self._open.pop(idle).close)  # others may be used meanwhile


class PageReader:
    """Opens pages as text. Without an extractor, only those that the engine has itself."""

    def __init__(
        self, engine: GuardedEngine, cache: PageCache, fetcher: Fetcher, extractor: PageExtractor | None
    ) -> None:
        self._engine = engine
        self._cache = cache
        self._fetcher = fetcher
        self._extractor = extractor
        self._slots = FairSemaphore(MAX_FETCHES, "pages", max_queue=_MAX_QUEUE, wait_timeout=_MAX_WAIT, retry_after=5)

    @property
    def opens_pages(self) -> bool:
        return self._engine.is_offline or self._extractor is not None

    async def read(
        self, tenant: str, url: str, *, domains: AllowedDomains, is_live: bool, is_stored: bool
    ) -> SavedPage:
        """Open a page; `PageUnavailable` says why not. Only with `is_live` it may be fetched."""
        try:
            key = comparable_url(str(check_url(url)))
        except FetchRefused as error:
            raise PageUnavailable(f"The page was not opened: {error}.") from error
        if not domains.allows(host_of(key)):
            allowed = ", ".join(domains.domains)
            raise PageUnavailable(f"The page was not opened: only pages of these domains are allowed: {allowed}.")
        if (page := await self._engine.page(key)) is not None:
            return page
        cached = await self._cache.get(tenant, key, max_age=self._cache.fresh_for if is_live else None)
        if cached is not None:
            self._check_redirects(cached, domains)
            return SavedPage(cached.url, cached.title, cached.text)
        if self._engine.is_offline:
            raise PageUnavailable("The page was not opened: it is not among the saved pages of this server.")
        if not is_live:
            raise PageUnavailable("The page was not opened: it was not retrieved earlier, and nothing is fetched now.")
        if self._extractor is None:
            raise PageUnavailable("Pages cannot be opened on this server: answer from the texts of the results.")
        return await self._fetch(tenant, key, domains, self._extractor, is_stored=is_stored)

    def _check_redirects(self, cached: Document, domains: AllowedDomains) -> None:
        """The redirects of a cached page, under the rule that they are checked by when the page is fetched."""
        for host in map(host_of, cached.redirects):
            if not domains.allows(host):
                reason = f"it redirects to {host}, which is not among the allowed domains"
                raise PageUnavailable(f"The page was not opened: {reason}.")

    async def _fetch(
        self, tenant: str, url: str, domains: AllowedDomains, extractor: PageExtractor, *, is_stored: bool
    ) -> SavedPage:
        try:
            async with self._slots.slot(tenant):  # until the text is extracted, since that needs the page in memory
                fetched: FetchedPage = await self._fetcher.fetch(
                    url, accepts=is_readable, allows_host=domains.allows, tenant=tenant
                )
                text = await extractor.extract(tenant, fetched)
        except QueueFull as error:
            raise PageUnavailable(
                "The page was not opened: too many pages are being opened; try again later."
            ) from error
        except FetchError as error:
            raise PageUnavailable(f"The page was not opened: {error}.") from error
        except ExtractionFailed as error:
            raise PageUnavailable(str(error)) from error
        title = clean_title(text.title) or host_of(fetched.url)
        clean = await asyncio.to_thread(without_control_characters, text.text)
        page = SavedPage(comparable_url(fetched.url), title, clean)
        if is_stored:
            redirects = tuple(map(comparable_url, fetched.redirects))
            document = Document(page.url, page.title, page.text, redirects=redirects)
            await self._cache.put(tenant, [document], redirected_from=url if redirects else None)
        return page
