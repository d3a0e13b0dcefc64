from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from antwort.api.errors import ApiError
from antwort.api.items import Item, read
from antwort.engine.attachments.input_urls import InputUrls
from antwort.engine.compaction.opening import message_digest
from antwort.engine.context import Context
from antwort.net.fetch import FetchedPage, Fetcher, FetchRefused

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class FakeFetcher:
    """Answers each URL with its own text; one with `refused` is refused. `is_open` is cleared to hold all answers.

    `is_busy` is set when the expected number of fetches runs.
    """

    def __init__(self) -> None:
        self.expected = 0
        self.is_busy = asyncio.Event()
        self.urls: list[str] = []
        self.running = 0
        self.most = 0
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def fetch(self, url: str, **_: Any) -> FetchedPage:
        self.urls.append(url)
        self.running += 1
        self.most = max(self.most, self.running)
        if self.running == self.expected:
            self.is_busy.set()
        try:
            await self.is_open.wait()
        finally:
            self.running -= 1
        if "refused" in url:
            raise FetchRefused("the host is not on the public internet")
        return FetchedPage(url, "text/plain", "", url.encode())


@pytest.fixture
async def fetcher():
    return FakeFetcher()


def user(*urls: str, **more: Any) -> Item:
    parts = [{"type": "input_file", "file_url": url, **more} for url in urls]
    return read({"type": "message", "role": "user", "content": parts})


async def resolve(fetcher: FakeFetcher, context: Context, *, most: int = 10_000, images: bool = True) -> Context:
    return await InputUrls(cast("Fetcher", fetcher), max_bytes=most).resolve(context, "t", images=images)


def parts(item: Item) -> list[dict[str, Any]]:
    return item.raw["content"]


@pytest.mark.parametrize(
    "url, more, name",
    [
        ("https://x.example/a/notes.txt?x=1#y", {}, "notes.txt"),
        ("https://x.example/a/notes", {}, "notes.txt"),
        ("https://x.example/", {}, "file.txt"),
        ("https://x.example/a%0A%2Fb%20c.md", {}, "b c.md"),
        ("https://x.example/" + "n" * 500 + ".md", {}, "n" * 197 + ".md"),
        ("https://x.example/notes.txt", {"filename": "mine.txt"}, "mine.txt"),
        ("https://x.example/notes.txt", {"filename": ""}, "notes.txt"),
    ],
)
async def test_the_name_of_a_file_is_given_or_the_last_segment_of_its_path(fetcher, url, more, name):
    context = await resolve(fetcher, Context([], [user(url, **more)]))

    [part] = parts(context.given[0])
    assert part["filename"] == name
    assert part["antwort:source_url"] == url
    assert "file_url" not in part


async def test_what_is_given_otherwise_is_not_fetched(fetcher):
    given = [
        user("https://x.example/a", file_id="file-1"),
        user("https://x.example/a", file_data="data:,x"),
        user("ftp://x.example/a"),
        read({"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": "data:x"}]}),
        read({"type": "message", "role": "user", "content": "https://x.example/"}),
    ]
    context = Context([], given)

    assert await resolve(fetcher, context) is context
    assert fetcher.urls == []


async def test_a_few_are_fetched_at_a_time_and_an_error_ends_the_others(fetcher):
    fetcher.is_open.clear()
    fetcher.expected = 4
    urls = [f"https://x.example/{n}" for n in range(9)]
    running = asyncio.create_task(resolve(fetcher, Context([], [user(*urls, "https://x.example/refused")])))
    await fetcher.is_busy.wait()
    fetcher.is_open.set()
    with pytest.raises(ApiError) as caught:
        await running

    assert (caught.value.status, caught.value.param) == (400, "input[0].content[9].file_url")
    assert "not on the public internet" in caught.value.message
    assert (fetcher.most, fetcher.running) == (4, 0)


async def test_a_request_that_is_cancelled_ends_its_fetches(fetcher):
    fetcher.is_open.clear()
    fetcher.expected = 2
    running = asyncio.create_task(resolve(fetcher, Context([], [user("https://x.example/1", "https://x.example/2")])))
    await fetcher.is_busy.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert fetcher.running == 0


async def test_urls_of_earlier_items_are_fetched_or_replaced_by_text_the_last_ones_first(fetcher):
    before = [user("https://x.example/old"), user("https://x.example/refused"), user("https://x.example/new")]
    given = [user(*(f"https://x.example/{n}" for n in range(62)), "https://x.example/new")]
    context = await resolve(fetcher, Context(before, given))

    old, refused, new = (parts(item)[0] for item in context.before)
    assert old["text"] == "[file https://x.example/old: there are too many]"
    assert "not on the public internet" in refused["text"]
    assert new == parts(context.given[0])[-1]
    assert len(fetcher.urls) == 64


async def test_a_screenshot_of_an_earlier_request_is_fetched_or_replaced_by_text(fetcher):
    def screenshot(url: str) -> Item:
        shown = {"type": "computer_screenshot", "image_url": url}
        return read({"type": "computer_call_output", "call_id": "c", "output": shown})

    refused, off = screenshot("https://x.example/refused"), screenshot("https://x.example/off")
    context = await resolve(fetcher, Context([refused], []))
    kept = await resolve(fetcher, Context([off, user("https://x.example/1")], []), images=False)

    assert context.before[0].raw["output"][0]["text"].startswith("[image https://x.example/refused: The URL")
    assert kept.before[0] is off


async def test_items_before_a_compaction_are_not_fetched(fetcher):
    context = await resolve(fetcher, Context([], [user("https://x.example/1"), user("https://x.example/2")], start=1))

    assert fetcher.urls == ["https://x.example/2"]
    assert parts(context.given[0])[0]["file_url"] == "https://x.example/1"


async def test_a_message_is_recognised_with_and_without_its_content(fetcher):
    image = {"type": "input_image", "image_url": "https://x.example/a.png"}
    fetched = {**image, "image_url": "data:image/png;base64,iVBO", "antwort:source_url": image["image_url"]}
    with_url, with_data = (read({"type": "message", "role": "user", "content": [part]}) for part in (image, fetched))
    file = user("https://x.example/1")
    context = await resolve(fetcher, Context([], [file]))

    assert message_digest(with_url) == message_digest(with_data)
    assert message_digest(file) == message_digest(context.given[0])
