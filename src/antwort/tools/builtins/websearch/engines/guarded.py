"""`GuardedEngine`: an engine behind circuit breakers and a limit of concurrent searches; checks its results.

What an engine returns comes from the web: results that are no web page, are of another domain, or are repeated are left
out, and texts are cut.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from antwort.engine.ports import ModelFault
from antwort.models.circuit_breaker import CircuitBreakers, CircuitOpen
from antwort.net.errors import QueueFull
from antwort.net.fair_semaphore import FairSemaphore
from antwort.tools.builtins.websearch.domains import AllowedDomains, comparable_url, host_of
from antwort.tools.builtins.websearch.engines.port import (
    SavedPage,
    SearchEngine,
    SearchFailed,
    SearchQuery,
    SearchResult,
)
from antwort.tools.builtins.websearch.results import clean_title, without_control_characters

MAX_URL: Final = 2048
MAX_CONCURRENT: Final = 16
_MARGIN: Final = 4  # how much more of a text is read than is shown, since white space is removed
_MAX_QUEUE: Final = 256


class GuardedEngine:
    """A `SearchEngine` for many tenants."""

    def __init__(
        self,
        engine: SearchEngine,
        *,
        name: str,
        wait_timeout: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._breakers = CircuitBreakers(name=f"web_search ({name})", clock=clock)
        self._slots = FairSemaphore(
            MAX_CONCURRENT, "searches", max_queue=_MAX_QUEUE, wait_timeout=wait_timeout, retry_after=5
        )

    @property
    def is_offline(self) -> bool:
        return self._engine.is_offline

    async def search(self, query: SearchQuery, *, tenant: str) -> list[SearchResult]:
        """The checked results of the engine; `SearchFailed`."""
        try:
            with await self._breakers.of(tenant).admit() as attempt:  # it ends also without a slot
                async with self._slots.slot(tenant):
                    found = await self._search(query)
                attempt.record_success()
            return _checked(found, query)
        except CircuitOpen as error:
            raise SearchFailed("The search engine has failed repeatedly; try again later.", is_rejected=True) from error
        except QueueFull as error:
            raise SearchFailed("Too many searches are running; try again later.", is_rejected=True) from error
        except ModelFault as fault:
            raise SearchFailed(fault.message) from fault

    async def _search(self, query: SearchQuery) -> list[SearchResult]:
        """An outage of the engine is the fault that the circuit breaker counts."""
        try:
            return await self._engine.search(query)
        except SearchFailed as error:
            if error.is_outage:
                raise ModelFault(str(error), retryable=True) from error
            raise

    async def page(self, url: str) -> SavedPage | None:
        """A page that the engine has itself."""
        return await self._engine.page(url)

    async def aclose(self) -> None:
        await self._engine.aclose()


def _checked(found: list[SearchResult], query: SearchQuery) -> list[SearchResult]:
    allowed = AllowedDomains(query.domains)
    results: dict[str, SearchResult] = {}
    for one in found:
        if len(one.url) > MAX_URL:
            continue
        url = comparable_url(one.url)
        host = host_of(url)
        if host and len(url) <= MAX_URL and url.isprintable() and " " not in url and allowed.allows(host):
            title = clean_title(one.title)
            text = without_control_characters(one.text[: _MARGIN * query.max_text]).strip()[: query.max_text]
            results.setdefault(url, SearchResult(url, title or host, text))
    return list(results.values())[: query.max_results]
