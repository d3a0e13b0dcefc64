from __future__ import annotations

import asyncio
import os

import pytest

from antwort.tools.builtins.websearch.document_index import DocumentIndex
from antwort.tools.builtins.websearch.engines import LocalEngine, SearchQuery
from antwort.tools.builtins.websearch.extraction import ExtractionFailed, PageText

pytestmark = pytest.mark.anyio


class FakeExtractor:
    """Takes the body as the text, and counts."""

    count = 0

    async def extract(self, tenant, page):
        self.count += 1
        if b"broken" in page.body:
            raise ExtractionFailed("broken")
        return PageText("", page.body.decode())


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pages" / "tea.example").mkdir(parents=True)
    return tmp_path / "pages"


async def open_local(folder, directory, extractor) -> LocalEngine:
    index = await asyncio.to_thread(DocumentIndex, directory / "index.db")
    return LocalEngine(folder, index, extractor)


@pytest.fixture
async def engine(folder, tmp_path):
    opened = await open_local(folder, tmp_path, FakeExtractor())
    yield opened
    await opened.aclose()


def write(folder, name: str, text: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")


async def urls(engine, text: str = "oolong") -> list[str]:
    return sorted(one.url for one in await engine.search(SearchQuery(text=text)))


async def test_urls_are_those_of_the_files_or_of_their_comments(engine, folder):
    write(folder, "tea.example/a b/grün.md", "# Green\noolong")
    write(folder, "saved.html", "<!-- saved from url=(0023)https://saved.example/x -->oolong")
    write(folder, "notes.txt", "<!-- URL: http://notes.example/n?x=1#y -->\noolong")
    write(folder, "no-url.txt", "<!-- url: https:// -->oolong")

    assert await urls(engine) == [
        "http://notes.example/n?x=1",
        "https://no-url.txt/",
        "https://saved.example/x",
        "https://tea.example/a%20b/gr%C3%BCn.md",
    ]
    page = await engine.page("https://tea.example/a%20b/gr%C3%BCn.md#x")
    note = await engine.page("http://notes.example/n?x=1")
    assert [(one.title, one.text) for one in (page, note)] == [("Green", "# Green\noolong"), ("notes", "oolong")]
    assert await engine.page("https://other.example/") is None


async def test_changes_of_the_folder_are_found(engine, folder):
    write(folder, "tea.example/a.md", "oolong")
    write(folder, "tea.example/b.html", "oolong")
    assert len(await urls(engine)) == 2
    extractor = engine._extractor
    assert extractor.count == 1
    write(folder, "tea.example/a.md", "sencha, which is longer")
    (folder / "tea.example" / "b.html").unlink()
    write(folder, "tea.example/c.html", "oolong")

    assert await urls(engine) == ["https://tea.example/c.html"]
    assert await urls(engine, "sencha") == ["https://tea.example/a.md"]
    assert extractor.count == 2


async def test_only_readable_files_below_the_folder_are_read(engine, folder, tmp_path):
    (tmp_path / "secret.md").write_text("oolong", encoding="utf-8")
    (folder / "tea.example" / "link.md").symlink_to(tmp_path / "secret.md")
    (folder / "linked").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(folder / "tea.example" / "pipe.md")
    write(folder, "tea.example/image.png", "oolong")
    write(folder, "tea.example/broken.html", "oolong broken")
    write(folder, "tea.example/big.md", "oolong" * 1_000_000)
    write(folder, "tea.example/a.md", "oolong")

    assert await urls(engine) == ["https://tea.example/a.md"]


async def test_without_an_extractor_html_is_left_out(folder, tmp_path):
    write(folder, "tea.example/a.md", "oolong")
    write(folder, "tea.example/b.html", "oolong")
    engine = await open_local(folder, tmp_path, None)

    assert await urls(engine) == ["https://tea.example/a.md"]
    await engine.aclose()


async def test_the_index_is_kept_between_two_starts(folder, tmp_path):
    write(folder, "tea.example/b.html", "oolong")
    counts = []
    for _ in range(2):
        extractor = FakeExtractor()
        engine = await open_local(folder, tmp_path, extractor)
        assert await urls(engine) == ["https://tea.example/b.html"]
        counts.append(extractor.count)
        await engine.aclose()

    assert counts == [1, 0]


async def test_a_folder_that_vanishes_finds_nothing(engine, folder):
    (folder / "tea.example").rmdir()
    folder.rmdir()

    assert await urls(engine) == []
