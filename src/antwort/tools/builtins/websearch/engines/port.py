"""Search engine port: the protocol `SearchEngine`, its query and results, and the error `SearchFailed`.

`antwort.testing.search_engine` is the conformance suite.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from antwort.api.tools import UserLocation


class SearchQuery(Struct, frozen=True, kw_only=True):
    """One query to an engine."""

    text: str
    max_results: int = 10
    max_text: int = 1000
    """Characters of text that are of use for each result."""
    domains: tuple[str, ...] = ()
    """Only results of these domains and their subdomains are of use; none: of all domains. A hint: it is checked."""
    location: UserLocation | None = None
    """Where the user is, for engines that use it."""


class SearchResult(Struct, frozen=True):
    """A page that was found: its URL and title, and a text about it."""

    url: str
    title: str
    text: str


class SavedPage(Struct, frozen=True):
    """A page as text."""

    url: str
    title: str
    text: str


class SearchFailed(Exception):
    """The search has no result. The message may be shown to a model: it contains no key and no address.

    With `is_outage` the engine is at fault and may recover: its circuit breaker counts that. With `is_rejected` nothing
    was requested from the engine.
    """

    def __init__(self, message: str, *, is_outage: bool = False, is_rejected: bool = False) -> None:
        super().__init__(message)
        self.is_outage = is_outage
        self.is_rejected = is_rejected


class SearchEngine(Protocol):
    """A search engine."""

    @property
    def is_offline(self) -> bool:
        """Whether it has the pages itself: then only those can be opened, and nothing is fetched from the web."""
        ...

    async def search(self, query: SearchQuery) -> list[SearchResult]:
        """Results, the best first, at most `max_results`; none if nothing is found; `SearchFailed`."""
        ...

    async def page(self, url: str) -> SavedPage | None:
        """A page that the engine has itself, as text; None if it has not."""
        ...

    async def aclose(self) -> None:
        """Close connections and files."""
        ...
