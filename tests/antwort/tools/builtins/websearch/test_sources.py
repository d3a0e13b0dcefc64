from __future__ import annotations

from antwort.api.items import read
from antwort.tools.builtins.websearch.sources import Sources


def call(**fields):
    return read({"type": "web_search_call", "id": "ws_1", "status": "completed", **fields})


def test_a_page_keeps_its_number():
    sources = Sources()
    first, second = sources.add("https://a.example", "A"), sources.add("https://b.example/", "")

    assert (first.number, second.number, second.title) == (1, 2, "b.example")
    assert sources.add("https://A.example/#x", "other") is first
    assert sources.by_number(2) is second
    assert sources.by_number(3) is None
    assert sources.by_url("https://c.example/") is None


def test_sources_of_the_history_keep_their_numbers():
    results = [{"index": 3, "url": "https://a.example/", "title": "A", "text": "x"}]
    sources = Sources([read({"role": "user", "content": "hi"}), call(results=results)])

    assert sources.by_number(3) == sources.by_url("https://a.example/")
    assert sources.add("https://b.example/", "B").number == 4


def test_sources_without_numbers_can_be_cited_by_their_url():
    action = {"type": "search", "sources": [{"type": "url", "url": "https://a.example/"}]}
    sources = Sources([call(action=action), call(action={"type": "open_page", "url": "https://b.example/"})])

    assert [getattr(sources.by_url(f"https://{name}.example/"), "number", None) for name in "abc"] == [0, 0, None]
    assert sources.by_number(0) is None
    assert sources.add("https://a.example/", "A").number == 1


def test_items_of_a_client_may_have_any_fields():
    odd = [
        {"results": "x", "action": "y"},
        {
            "results": [
                1,
                {"url": 5},
                {"url": "javascript:alert(1)", "index": 1},
                {"index": "1", "url": "https://a.example/"},
            ]
        },
        {"results": [{"index": 10**9, "url": "https://a.example/"}, {"index": -1, "url": "https://b.example/"}]},
        {
            "results": [
                {"index": 1, "url": "https://c.example/", "title": ["x"]},
                {"index": 1, "url": "https://d.example/"},
            ]
        },
        {"action": {"sources": [None, {"url": None}], "url": 7}},
    ]
    sources = Sources([call(**fields) for fields in odd])

    assert getattr(sources.by_number(1), "url", None) == "https://c.example/"
    assert getattr(sources.by_number(1), "title", None) == "c.example"
    assert sources.by_url("https://d.example/") is None
