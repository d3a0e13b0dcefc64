from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor

import pytest

from antwort.tools.builtins.websearch.document_index import Document, DocumentIndex


class FakeTime:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return FakeTime()


@pytest.fixture
def index(tmp_path, clock):
    opened = DocumentIndex(tmp_path / "new" / "index.db", clock=clock)
    yield opened
    opened.close()


def put(index, name: str, text: str, *, is_page: bool = True) -> None:
    index.put([(f"{name}.example", Document(f"https://{name}.example/", name, text, is_page))])


def urls(found) -> list[str]:
    return [one.url.split("/")[2].removesuffix(".example") for one in found]


def test_documents_are_found_by_any_word_the_best_first(index):
    put(index, "a", "green tea")
    put(index, "b", "green tea, tea and tea")
    put(index, "tea", "coffee")
    put(index, "d", "water")

    assert urls(index.search("TEA", limit=9))[0] == "tea", "words of the title count more"
    assert sorted(urls(index.search("green TEA", limit=9))) == ["a", "b", "tea"]
    assert urls(index.search("nothing", limit=9)) == []
    assert len(index.search("tea", limit=2)) == 2


QUERIES = ['"', "tea AND", "NEAR(tea", "*", "tea*", "title:tea", "-", "", "a" * 10_000, "tea " * 500]


@pytest.mark.parametrize("query", QUERIES)
def test_any_text_is_a_query(index, query):
    put(index, "a", "tea")

    assert urls(index.search(query, limit=9)) in ([], ["a"])


def test_diacritics_and_case_do_not_matter(index):
    put(index, "a", "Grüner Käse")

    assert urls(index.search("kase", limit=9)) == ["a"]


def test_domains_include_subdomains_only(index):
    for name in ("tea", "www.tea", "xtea", "w_w.tea"):
        put(index, name, "oolong")

    assert sorted(urls(index.search("oolong", limit=9, domains=("tea.example",)))) == ["tea", "w_w.tea", "www.tea"]
    assert urls(index.search("oolong", limit=9, domains=("w%.example", "www_tea.example"))) == []


def test_a_document_is_replaced_and_a_snippet_does_not_replace_a_page(index, clock):
    put(index, "a", "snippet", is_page=False)
    put(index, "a", "page one")
    clock.now += 5
    put(index, "a", "page two")
    put(index, "a", "snippet", is_page=False)

    assert index.get("https://a.example/") == Document("https://a.example/", "a", "page two", True, 1005.0)
    assert index.get("https://b.example/") is None
    assert urls(index.search("one", limit=9)) == []
    assert urls(index.search("two", limit=9)) == ["a"]


def test_old_and_excess_documents_are_deleted(index, clock):
    for name in "abcd":
        put(index, name, "tea " * 100)
        clock.now += 10
    index.shrink(max_size=900, max_age=35)

    assert sorted(urls(index.search("tea", limit=9))) == ["c", "d"]
    assert urls(index.search("tea", limit=9, since=1025)) == ["d"]
    index.shrink(max_size=0, max_age=35)
    assert index.search("tea", limit=9) == []


def test_files_own_their_documents(index):
    tea = Document("https://tea.example/", "Tea", "oolong")
    index.put_file("a.md", "1", "tea.example", tea)
    index.put_file("b.md", "1", "", None)
    assert index.file_versions() == {"a.md": "1", "b.md": "1"}
    index.put_file("a.md", "2", "tea.example", Document("https://tea.example/new", "Tea", "sencha"))
    assert index.get(tea.url) is None
    assert urls(index.search("sencha", limit=9)) == ["tea"]
    index.remove_files(["a.md", "unknown"])
    assert index.file_versions() == {"b.md": "1"}
    assert index.search("sencha", limit=9) == []


@pytest.mark.parametrize("content", [b"no database", b"SQLite format 3\0" + b"x" * 5000, b""])
def test_an_invalid_file_is_replaced(tmp_path, content):
    path = tmp_path / "index.db"
    path.write_bytes(content)
    index = DocumentIndex(path)
    put(index, "a", "tea")

    assert urls(index.search("tea", limit=9)) == ["a"]
    index.close()


def test_a_file_of_another_version_is_replaced_and_one_of_this_version_is_kept(tmp_path):
    path = tmp_path / "index.db"
    for expected in ([], ["a"]):
        index = DocumentIndex(path)
        assert urls(index.search("tea", limit=9)) == expected
        put(index, "a", "tea")
        index.close()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    index = DocumentIndex(path)

    assert index.search("tea", limit=9) == []
    index.close()


def test_threads_may_use_it_at_the_same_time(index):
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: put(index, str(number), "tea"), range(50)))
        found = list(threads.map(lambda _: len(index.search("tea", limit=99)), range(20)))

    assert set(found) == {50}


def test_the_size_limit_costs_the_same_with_many_documents(index):
    """In steps of SQLite's virtual machine."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    costs: list[int] = []
    for number in range(2):
        many = [
            ("a.example", Document(f"https://a.example/{number}/{at}", "t", "tea")) for at in range(10**number * 100)
        ]
        index.put(many)
        index._connection.set_progress_handler(count, 1)
        index.shrink(max_size=10**9, max_age=10**9)
        index._connection.set_progress_handler(None, 1)
        costs.append(steps)
        steps = 0

    assert costs[1] <= costs[0] + 10


def test_the_total_follows_replaced_and_deleted_documents(index):
    for name, text in (("a", "tea " * 10), ("b", "tea"), ("a", "tea"), ("c", "coffee " * 20)):
        put(index, name, text)
    index.shrink(max_size=200, max_age=10**9)

    (total,) = index._connection.execute("SELECT size FROM total").fetchone()
    (stored,) = index._connection.execute("SELECT sum(size) FROM documents").fetchone()
    assert total == stored
