"""Sources of a response: the pages that its searches found or opened, numbered for citations. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from msgspec import Struct

from antwort.api.items import Item
from antwort.tools.builtins.websearch.domains import comparable_url, host_of

_MAX_NUMBER = 1_000_000


class Source(Struct, frozen=True):
    """A retrieved page. `number` is what the model cites it by; 0 if it was not shown one."""

    number: int
    url: str
    title: str


class Sources:
    """The sources of a response and of the searches in its history. A URL keeps its number."""

    def __init__(self, history: Iterable[Item] = ()) -> None:
        self._by_url: dict[str, Source] = {}
        self._by_number: dict[int, Source] = {}
        self._last = 0
        for item in history:
            if item.type == "web_search_call":
                self._restore(item.raw)

    def add(self, url: str, title: str) -> Source:
        """The source of a URL that was retrieved, with its number."""
        key = comparable_url(url)
        known = self._by_url.get(key)
        if known is not None and known.number:
            return known
        self._last += 1
        return self._put(Source(self._last, key, title or host_of(key)))

    def by_url(self, url: str) -> Source | None:
        """The source of a URL; None if it was not retrieved."""
        return self._by_url.get(comparable_url(url))

    def by_number(self, number: int) -> Source | None:
        return self._by_number.get(number)

    def __bool__(self) -> bool:
        return bool(self._by_url)

    def _put(self, source: Source) -> Source:
        self._by_url[source.url] = source
        if source.number:
            self._by_number[source.number] = source
        return source

    def _restore(self, call: Mapping[str, Any]) -> None:
        """Take over the sources of an earlier call. Items of a client may have any fields."""
        for result in _objects(call.get("results")):
            number, url, title = result.get("index"), result.get("url"), result.get("title")
            if not (isinstance(url, str) and host_of(url)):
                continue
            known = self._by_url.get(comparable_url(url))
            is_new = known is None or not known.number
            if is_new and isinstance(number, int) and 0 < number < _MAX_NUMBER and number not in self._by_number:
                self._last = max(self._last, number)
                self._put(Source(number, comparable_url(url), title if isinstance(title, str) else host_of(url)))
        action = call.get("action")
        fields = cast("dict[str, Any]", action) if isinstance(action, dict) else {}
        for source in [*_objects(fields.get("sources")), fields]:
            url = source.get("url")
            if isinstance(url, str) and host_of(url) and self.by_url(url) is None:
                self._put(Source(0, comparable_url(url), host_of(url)))


def _objects(value: object) -> list[dict[str, Any]]:
    entries = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", entry) for entry in entries if isinstance(entry, dict)]
