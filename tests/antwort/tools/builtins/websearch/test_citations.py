from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.tools.builtins.websearch.citations import MAX_MENTION, CitationScanner
from antwort.tools.builtins.websearch.sources import Sources

TEA, WIKI = "https://tea.example/prices", "https://en.example/wiki/Tea_(drink)"


def sources() -> Sources:
    found = Sources()
    found.add(TEA, "Tea prices")
    found.add(WIKI, "Tea (drink)")
    return found


def cited(text: str, size: int = 0) -> list[tuple[str, int]]:
    """The cited parts of a text that is fed in parts of this size, with the number of the source."""
    scanner, numbers = CitationScanner(sources()), {TEA: 1, WIKI: 2}
    size = size or max(1, len(text))
    found = [one for at in range(0, len(text), size) for one in scanner.feed(text[at : at + size])]
    found += scanner.finish(text)
    return [(text[one.start_index : one.end_index], numbers[one.url]) for one in found]


LINK = f"[Tea prices]({TEA})"
CASES = {
    "number": ("Oolong costs 12 €[1].", [("[1]", 1)]),
    "numbers": ("So they say [1, 2] and [1][2].", [("[1, 2]", 1), ("[1, 2]", 2), ("[1]", 1), ("[2]", 2)]),
    "footnote": ("So they say[^2].", [("[^2]", 2)]),
    "other brackets": ("So【1】and【2†source】.", [("【1】", 1), ("【2†source】", 2)]),
    "repeated number": ("[1, 1]", [("[1, 1]", 1)]),
    "link": (f"See {LINK}.", [(LINK, 1)]),
    "link with a title": (f'See [x]({TEA} "Tea").', [(f'[x]({TEA} "Tea")', 1)]),
    "link in angle brackets": (f"See [x](<{TEA}>).", [(f"[x](<{TEA}>)", 1)]),
    "link with parentheses": (f"([en.example]({WIKI}))", [(f"[en.example]({WIKI})", 2)]),
    "number as a link": (f"See [1]({WIKI}).", [(f"[1]({WIKI})", 2)]),
    "plain URL": (f"See {TEA}, and ({WIKI}).", [(TEA, 1), (WIKI, 2)]),
    "URL at the end": (f"See {TEA}", [(TEA, 1)]),
    "URL in angle brackets": (f"<{TEA}>", [(TEA, 1)]),
    "URL in bold": (f"**{TEA}**", [(TEA, 1)]),
    "URL with a fragment": (f"{TEA}#oolong", [(f"{TEA}#oolong", 1)]),
    "URL with its default port": ("https://TEA.example:443/prices", [("https://TEA.example:443/prices", 1)]),
    "URL within brackets": (f"[see {TEA}]", [(TEA, 1)]),
    "emoji and combining characters": ("🍵👩‍🚀e\u0301 [1] 茶", [("[1]", 1)]),
    "reference list": (f"[1]: {TEA}\n", [("[1]", 1), (TEA, 1)]),
    "never retrieved": ("[3] [x](https://other.example/) https://tea.example/ [0]", []),
    "number as a link to another page": ("[1](https://other.example/)", []),
    "inline code": ("`a[1]` and ``b`[1]`` but [1]", [("[1]", 1)]),
    "code block": ("```py\nx[1]\n`y[1]`\n```\n[1]", [("[1]", 1)]),
    "URL in code": (f"`{TEA}`", []),
    "apostrophe that is a backtick": ("it`s\nso [1]", [("[1]", 1)]),
    "JSON object": (f'{{"n": [1], "u": "{TEA}"}}', [(TEA, 1)]),
    "JSON array": ('[{"n": [1]}]', []),
    "JSON after white space": ('\n {"n": [1]}', []),
    "number at the start": ("[1] says so.", [("[1]", 1)]),
    "only a number": ("[1]", [("[1]", 1)]),
    "unclosed": ("[1", []),
    "unclosed link": (f"[1]({TEA}", [("[1]", 1), (TEA, 1)]),
    "text in parentheses behind a number": ("[1](see above) so", [("[1]", 1)]),
    "nested brackets": ("so [[1]]", [("[1]", 1)]),
    "empty brackets": ("[] [ ] [a]", []),
    "brackets over lines": ("[\n1] [1\n]", []),
    "huge number": ("[99999999999]", []),
    "no URL": (f"http:// https:// http {TEA}", [(TEA, 1)]),
}


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 64])
@pytest.mark.parametrize("name", CASES)
def test_citations_of_a_text_are_the_same_however_it_is_split(name, size):
    text, expected = CASES[name]

    assert cited(text, size) == expected


def test_a_citation_is_found_with_the_character_behind_it():
    scanner = CitationScanner(sources())

    assert scanner.feed("So[1]") == []
    (found,) = scanner.feed(" and")
    assert (found.start_index, found.end_index, found.title) == (2, 5, "Tea prices")
    assert scanner.feed(f" [x]({TEA}") == []
    (link,) = scanner.feed(")")
    assert (link.start_index, link.end_index) == (10, 10 + len(f"[x]({TEA})"))
    assert scanner.finish("") == []


PIECES = [
    *(
        "[1]",
        "[2]",
        "[",
        "]",
        "(",
        ")",
        "`",
        "```",
        "\n",
        " ",
        "a",
        "é",
        "🍵",
        "1",
        ",",
        "【",
        "】",
        "<",
        ">",
        "{",
        '"',
    ),
    *(TEA, WIKI, "https://", "http", LINK, "](", "†", "^"),
]


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join), st.integers(1, 9))
def test_any_text_in_any_parts_has_the_citations_of_the_whole(text, size):
    whole = cited(text)

    assert cited(text, size) == whole
    assert all(part in text for part, _ in whole)


def test_a_source_that_is_found_while_the_text_is_written_is_cited():
    found = Sources()
    scanner = CitationScanner(found)
    scanner.feed("So [1] ")
    found.add(TEA, "Tea")

    assert [one.url for one in scanner.feed("and [1] ")] == [TEA]


@pytest.mark.parametrize("text", ["[", "[1", f"[{'x' * 50}](", "【", "`", "https://" + "x" * 50, "[1](("])
def test_only_a_bounded_part_of_the_text_is_kept_and_read_again(text):
    scanner = CitationScanner(sources())
    for _ in range(20_000 // len(text)):
        scanner.feed(text)
        assert len(scanner._tail) <= MAX_MENTION + 64


@pytest.mark.parametrize("text", ["[a](", "http://", "[1†", "[", "[a]()"])
def test_a_long_delta_takes_time_in_proportion_to_its_length(text):
    long = f"{text * (300_000 // len(text))} {LINK} "  # quadratic time would be minutes

    assert cited(long) == [(LINK, 1)]


def test_a_mention_that_is_too_long_is_text():
    assert cited(f"[{'x' * (MAX_MENTION + 1)}]({TEA})", 50) == [(TEA, 1)]


def test_random_noise_does_not_raise():
    rng = random.Random(7)  # noqa: S311 - not for cryptography
    for _ in range(300):
        cited("".join(rng.choice(PIECES) for _ in range(60)), rng.randint(1, 20))


def test_a_scheme_without_a_host_does_not_delay_later_citations():
    scanner = CitationScanner(sources())

    assert [one.start_index for one in scanner.feed("http:// [1] and")] == [8]
