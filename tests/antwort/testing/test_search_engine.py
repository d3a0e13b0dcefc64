from __future__ import annotations

import pytest
from fake_search_api import KEY, Found, fake_search_api

from antwort.testing.search_engine import PAGES, SearchEngineConformance
from antwort.tools.builtins.websearch.document_index import DocumentIndex
from antwort.tools.builtins.websearch.engines import (
    BraveEngine,
    ExaEngine,
    GuardedEngine,
    LocalEngine,
    SearchEngine,
    SearxngEngine,
    TavilyEngine,
)
from antwort.tools.builtins.websearch.engines.port import SearchQuery


class HttpEngineConformance(SearchEngineConformance):
    @pytest.fixture(autouse=True)
    def _set_api(self):
        with fake_search_api([]) as api:
            self.api = api
            yield

    def make(self, pages):
        self.api.documents = [Found(page.url, page.title, page.text) for page in pages]
        return self.connect(self.api.url)

    def make_failing(self):
        return self.connect("http://127.0.0.1:1")

    def connect(self, url):
        raise NotImplementedError


class TestSearxng(HttpEngineConformance):
    def connect(self, url):
        return SearxngEngine(url)


class TestBrave(HttpEngineConformance):
    def connect(self, url):
        return BraveEngine(KEY, url=url)


class TestTavily(HttpEngineConformance):
    def connect(self, url):
        return TavilyEngine(KEY, url=url)


class TestExa(HttpEngineConformance):
    def connect(self, url):
        return ExaEngine(KEY, url=url)


class TestLocal(SearchEngineConformance):
    @pytest.fixture(autouse=True)
    def _set_directory(self, tmp_path):
        self.directory = tmp_path

    def make(self, pages) -> SearchEngine:
        folder = self.directory / "pages"
        folder.mkdir(exist_ok=True)
        for number, page in enumerate(pages):
            url = page.url.replace("ü", "%C3%BC")
            (folder / f"{number}.md").write_text(f"<!-- url: {url} -->\n# {page.title}\n{page.text}", encoding="utf-8")
        return PlainTextEngine(folder, DocumentIndex(self.directory / "index.db"), None)


class PlainTextEngine(LocalEngine):
    """Without the heading of the file, and with the URLs as they are in the suite."""

    async def search(self, query: SearchQuery):
        urls = {page.title: page.url for page in PAGES}
        return [type(one)(urls[one.title], one.title, one.text) for one in await super().search(query)]

    async def page(self, url):
        page = await super().page(url)
        return page and type(page)(page.url, page.title, page.text.partition("\n")[2].strip())


class GuardedForSuite:
    """A `GuardedEngine` with one tenant, as an engine."""

    def __init__(self, engine: GuardedEngine) -> None:
        self._engine = engine
        self.is_offline = engine.is_offline

    async def search(self, query: SearchQuery):
        return await self._engine.search(query, tenant="a")

    async def page(self, url):
        return await self._engine.page(url)

    async def aclose(self):
        await self._engine.aclose()


class TestGuarded(TestLocal):
    def make(self, pages):
        return GuardedForSuite(GuardedEngine(super().make(pages), name="local"))
