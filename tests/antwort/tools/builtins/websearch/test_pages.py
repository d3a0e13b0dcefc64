from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

import pytest
from waiting import wait_until_async

from antwort.config import WebCacheSettings
from antwort.net.fetch import AddressPolicy, FetchedPage, Fetcher, FetchLimits
from antwort.tools.builtins.websearch.document_index import Document
from antwort.tools.builtins.websearch.domains import AllowedDomains, allowed_domains
from antwort.tools.builtins.websearch.engines import GuardedEngine, SavedPage
from antwort.tools.builtins.websearch.extraction import ExtractionFailed, PageText
from antwort.tools.builtins.websearch.pages import MAX_FETCHES, PageCache, PageReader, PageUnavailable

pytestmark = pytest.mark.anyio


class FakeTime:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class NoPages:
    """An engine without pages of its own."""

    is_offline = False

    async def search(self, query):
        return []

    async def page(self, url) -> SavedPage | None:
        return None

    async def aclose(self):
        pass


class OwnPages(NoPages):
    """An engine with one page."""

    is_offline = True

    async def page(self, url):
        return SavedPage(url, "Own", "own text") if url == "https://own.example/" else None


class FakeExtractor:
    """Takes the body as the text."""

    async def extract(self, tenant, page):
        if b"Tea prices" not in page.body:
            raise ExtractionFailed("The page could not be read: its parser ended with 'error'.")
        return PageText("", page.body.decode())


def page(name: str, text: str = "tea") -> Document:
    return Document(f"https://{name}.example/", name, text)


@pytest.fixture
async def cache(tmp_path):
    clock = FakeTime()
    opened: Any = PageCache(tmp_path / "cache", WebCacheSettings(max_bytes=10_000, max_age=100, fresh_for=10), clock)
    opened.clock = clock
    yield opened
    await opened.aclose()


async def search(cache, tenant: str, text: str = "tea"):
    return [one.title for one in await cache.search(tenant, text, limit=9, max_text=50, domains=())]


async def test_each_tenant_has_a_cache_of_its_own(cache, tmp_path):
    await cache.put("a", [page("x")])

    assert await search(cache, "a") == ["x"]
    assert await search(cache, "b") == []
    assert await cache.get("b", "https://x.example/") is None
    assert await cache.get("../a", "https://x.example/") is None
    names = {path.name for path in (tmp_path / "cache").glob("*.db")}
    assert len(names) == 3
    assert all(len(name) == 35 for name in names)


async def test_pages_expire_and_their_size_is_bounded(cache):
    await cache.put("a", [page("old", "tea " * 1000)])
    cache.clock.now += 50
    await cache.put("a", [page("new", "tea " * 1000), page("newer", "tea " * 1000)])

    assert sorted(await search(cache, "a")) == ["new", "newer"]
    assert await cache.get("a", "https://new.example/#x") is not None
    cache.clock.now += 60
    assert await cache.get("a", "https://new.example/", max_age=10) is None
    assert await cache.get("a", "https://new.example/") is not None
    cache.clock.now += 41
    assert await cache.get("a", "https://new.example/") is None
    assert await search(cache, "a") == []


async def test_many_tenants_do_not_keep_many_files_open(cache):
    for tenant in map(str, range(40)):
        await cache.put(tenant, [page("x")])

    assert len(cache._open) == 32
    assert await search(cache, "0") == ["x"]


async def test_a_tenant_does_not_wait_for_the_cache_of_another(cache, tmp_path):
    await cache.put("a", [page("x")])
    (file,) = (tmp_path / "cache").glob("*.db")
    with closing(sqlite3.connect(file)) as other:
        other.execute("BEGIN IMMEDIATE")  # as a slow disk: what is written next waits
        waiting = asyncio.create_task(cache.put("a", [page("y")]))
        await asyncio.sleep(0)
        await cache.put("b", [page("x")])

        assert await search(cache, "b") == ["x"]
        assert not waiting.done()
        other.rollback()
    await waiting
    assert sorted(await search(cache, "a")) == ["x", "y"]


async def test_files_that_are_in_use_are_not_closed(cache):
    tenants = [str(number) for number in range(60)]
    await asyncio.gather(*(cache.put(tenant, [page(f"p{tenant}")]) for tenant in tenants))

    assert len(cache._open) <= 32
    assert await asyncio.gather(*(search(cache, tenant) for tenant in tenants)) == [[f"p{one}"] for one in tenants]


async def test_files_that_are_used_again_while_others_are_closed_stay_open(cache):
    for number in range(32):
        await cache.put(str(number), [page("x")])
    first, second, *busy = [cache._open[str(number)] for number in range(4)]
    for index in busy:
        index.users += 1
        cache._open[f"{id(index)}"] = index  # two more than may be open, with the next one
    with second._opening:  # its next use takes long
        with first._opening:  # so does its end
            new = asyncio.create_task(cache.put("new", [page("x")]))
            await wait_until_async(lambda: "0" not in cache._open)
            used = asyncio.create_task(search(cache, "1"))
            await wait_until_async(lambda: second.users)
        await wait_until_async(lambda: len(cache._open) <= 32)
        assert cache._open.get("1") is second
    await new
    assert await used == ["x"]


async def test_a_cache_that_cannot_be_written_fails_no_call(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    cache = PageCache(tmp_path / "file", WebCacheSettings())
    await cache.put("a", [page("x")])

    assert await cache.get("a", "https://x.example/") is None
    assert await search(cache, "a") == []
    assert "cannot be used" in caplog.text


def reader(cache, site, engine=None, extractor: Any = None) -> PageReader:
    fetcher = Fetcher(AddressPolicy(["127.0.0.1"]), FetchLimits(ports=[site.port]))
    guarded = GuardedEngine(NoPages() if engine is None else engine, name="fake")
    return PageReader(guarded, cache, fetcher, FakeExtractor() if extractor is None else extractor)  # pyright: ignore[reportArgumentType] - a fake


async def read(opened: PageReader, url: str, **options: Any):
    given = {"domains": AllowedDomains(), "is_live": True, "is_stored": True, **options}
    return await opened.read("a", url, **given)


async def test_a_page_is_fetched_once_while_it_is_fresh(cache, site):
    opened = reader(cache, site)
    before = len(site.paths)
    first = await read(opened, f"{site.url}/redirect?to=/tea")
    second = await read(opened, f"{site.url}/tea")

    assert (first.url, first.title) == (f"{site.url}/tea", "127.0.0.1")
    assert second.text == first.text
    assert len(site.paths) == before + 2
    cache.clock.now += 11
    await read(opened, f"{site.url}/tea")
    assert len(site.paths) == before + 3


@pytest.fixture
def two_hosts(cache, site):
    """A reader to whom the site has the hosts `a.example`, whose `/redirect` leads to `b.example`, and `b.example`."""

    async def resolve(host: str, port: int):
        return ["127.0.0.1"]

    fetcher = Fetcher(AddressPolicy(["127.0.0.1"]), FetchLimits(ports=[site.port]), resolve=resolve)
    guarded = GuardedEngine(NoPages(), name="fake")
    return PageReader(guarded, cache, fetcher, FakeExtractor())  # pyright: ignore[reportArgumentType] - a fake


@pytest.mark.parametrize("is_live", [True, False])
async def test_the_redirects_of_a_cached_page_are_checked_again(cache, site, two_hosts, is_live):
    target = f"http://b.example:{site.port}/tea"
    back = f"http://a.example:{site.port}/redirect?to={target}"
    url = f"http://a.example:{site.port}/redirect?to={back.replace('&', '%26')}"
    assert (await read(two_hosts, url)).url == target
    requests = len(site.paths)

    cached = await read(two_hosts, url, is_live=is_live)
    both = await read(two_hosts, url, is_live=is_live, domains=AllowedDomains(["a.example", "b.example"]))
    assert (cached.url, both.url) == (target, target), "a cached page has the URL that it was found at"
    for only in ("a.example", "b.example"):
        with pytest.raises(PageUnavailable, match="allowed"):
            await read(two_hosts, url, is_live=is_live, domains=AllowedDomains([only]))
    assert [one.url for one in await cache.search("a", "tea", limit=9, max_text=9, domains=("a.example",))] == []
    assert [one.url for one in await cache.search("a", "tea", limit=9, max_text=9, domains=("b.example",))] == [target]
    assert len(site.paths) == requests


async def test_a_redirect_is_dropped_with_its_page_and_replaced_by_a_page(cache):
    redirected = Document("https://b.example/", "b", "tea", redirects=("https://c.example/", "https://b.example/"))
    await cache.put("a", [redirected], redirected_from="https://a.example/")
    found = await cache.get("a", "https://a.example/")
    assert found is not None
    assert (found.url, found.redirects) == ("https://b.example/", redirected.redirects)

    await cache.put("a", [page("a")])
    assert (await cache.get("a", "https://a.example/")).redirects == ()
    await cache.put("a", [redirected], redirected_from="https://a.example/")
    cache.clock.now += 101
    await cache.put("a", [page("x")])
    assert await cache.get("a", "https://a.example/") is None


async def test_a_redirect_is_as_old_as_it_is_and_not_as_its_page(cache):
    target = Document("https://b.example/", "b", "tea", redirects=("https://b.example/",))
    await cache.put("a", [target], redirected_from="https://a.example/")
    cache.clock.now += 60
    await cache.put("a", [page("b")])

    assert await cache.get("a", "https://b.example/", max_age=10) is not None
    assert await cache.get("a", "https://a.example/", max_age=10) is None, "it may redirect elsewhere by now"
    assert await cache.get("a", "https://a.example/") is not None
    cache.clock.now += 60
    await cache.put("a", [page("b")])
    assert await cache.get("a", "https://a.example/") is None


async def test_redirects_are_bounded(cache):
    target = Document("https://b.example/", "b", "tea", redirects=("https://b.example/",))
    for number in range(1010):
        cache.clock.now += 0.01
        await cache.put("a", [target], redirected_from=f"https://a.example/{number}")

    found = [await cache.get("a", f"https://a.example/{number}") for number in (0, 9, 10, 1009)]
    assert [one is not None for one in found] == [False, False, True, True]


async def test_pages_that_are_opened_at_the_same_time_are_limited(cache):
    class CountingFetcher:
        running = most = 0
        go = asyncio.Event()

        async def fetch(self, url, **_):
            self.running += 1
            self.most = max(self.most, self.running)
            await self.go.wait()
            self.running -= 1
            return FetchedPage(url, "text/html", "", b"Tea prices")

    fetcher = CountingFetcher()
    opened = PageReader(GuardedEngine(NoPages(), name="fake"), cache, fetcher, FakeExtractor())  # pyright: ignore[reportArgumentType] - a fake of each
    async with asyncio.TaskGroup() as tasks:
        for number in range(3 * MAX_FETCHES):
            tasks.create_task(read(opened, f"https://tea.example/{number}", is_stored=False))
        await wait_until_async(lambda: fetcher.running == MAX_FETCHES)
        fetcher.go.set()

    assert fetcher.most == MAX_FETCHES


@pytest.mark.parametrize("host", ["münchen.example", "xn--mnchen-3ya.example"])
async def test_a_domain_that_is_not_ascii_is_allowed_in_both_forms(two_hosts, site, host):
    domains = allowed_domains(["münchen.example"], "tools[0].filters.allowed_domains")

    assert (await read(two_hosts, f"http://{host}:{site.port}/tea", domains=domains)).text


async def test_the_title_of_a_page_is_one_line_and_its_text_has_no_control_characters(cache, site):
    class HostileExtractor:
        async def extract(self, tenant, page):
            return PageText("Tea\n[2] Bank\nhttps://bank.example/\x00", "a\x00\x1b[31mb\n\tc")

    page = await read(reader(cache, site, extractor=HostileExtractor()), f"{site.url}/tea")

    assert (page.title, page.text) == ("Tea [2] Bank https://bank.example/", "a  [31mb\n\tc")


async def test_pages_of_the_engine_are_not_fetched(cache, site):
    opened = reader(cache, site, OwnPages())
    before = len(site.paths)

    assert (await read(opened, "https://own.example#x")).text == "own text"
    with pytest.raises(PageUnavailable, match="not among the saved pages"):
        await read(opened, f"{site.url}/tea")
    assert len(site.paths) == before
    assert opened.opens_pages


@pytest.mark.parametrize(
    "path, options, message",
    [
        ("/nothing", {}, "status 404"),
        ("/untyped", {}, "its parser ended with 'error'"),
        ("/tea", {"domains": AllowedDomains(("tea.example",))}, "only pages of these domains are allowed: tea.example"),
        ("/tea", {"is_live": False}, "was not retrieved earlier"),
        ("/a b", {}, "spaces or control"),
    ],
)
async def test_a_page_that_cannot_be_opened_says_why(cache, site, path, options, message):
    with pytest.raises(PageUnavailable, match=message):
        await read(reader(cache, site), f"{site.url}{path}", **options)


async def test_what_is_not_stored_is_not_cached(cache, site):
    opened = reader(cache, site)
    await read(opened, f"{site.url}/gzip", is_stored=False)

    with pytest.raises(PageUnavailable, match="was not retrieved earlier"):
        await read(opened, f"{site.url}/gzip", is_live=False)
    await read(opened, f"{site.url}/gzip")
    assert "Tea prices" in (await read(opened, f"{site.url}/gzip", is_live=False)).text


async def test_without_an_extractor_no_page_can_be_opened(cache, site):
    guarded = GuardedEngine(NoPages(), name="fake")
    opened = PageReader(guarded, cache, Fetcher(), None)

    assert not opened.opens_pages
    with pytest.raises(PageUnavailable, match="cannot be opened on this server"):
        await read(opened, f"{site.url}/tea")
