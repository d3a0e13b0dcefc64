from __future__ import annotations

import re

import pytest

from antwort.tools.builtins.websearch.results import (
    NOTHING_FOUND,
    ShownResult,
    excerpt,
    found_text,
    page_text,
    search_text,
)
from antwort.tools.builtins.websearch.sources import Source

TEA = Source(2, "https://tea.example/", "Tea")


def test_results_are_numbered_and_problems_follow():
    text = search_text([ShownResult(TEA, "Oolong.")], ["One query failed."])

    assert text == "[2] Tea\nhttps://tea.example/\nOolong.\n\n(One query failed.)"
    assert search_text([], []) == NOTHING_FOUND


def test_a_page_comes_in_parts():
    text = "".join(f"{number:09d}\n" for number in range(25))
    first, shown = page_text(TEA, text, 1, 100)
    last, rest = page_text(TEA, text, 99, 100)

    assert shown == text[:100]
    assert first.endswith("(part 1 of 3; open_page with part 2 continues)")
    assert rest == text[200:]
    assert last.endswith("(part 3 of 3, the last)")
    assert page_text(TEA, "short", 1, 100) == ("[2] Tea\nhttps://tea.example/\nshort", "short")
    assert "no text" in page_text(TEA, "", 1, 100)[0]


def test_finding_shows_each_place_once():
    text = f"Tea.{' x' * 400} The\nPRICE of tea.{' y' * 400} the price again, the price."
    shown, excerpts = found_text(TEA, text, "the price")

    assert shown.startswith("[2] Tea\nhttps://tea.example/\n3 places with 'the price':")
    assert excerpts.count("---") == 1
    assert "PRICE" in excerpts


def test_finding_is_of_text_and_not_of_patterns():
    assert found_text(TEA, "a+b? (c)", "a+b? (c)")[1] == "a+b? (c)"
    assert found_text(TEA, "aab", "a+b") == ("[2] Tea\nhttps://tea.example/\nThe page does not contain 'a+b'.", "")


@pytest.mark.parametrize("pattern", ["e", "tea", "tea x", "x tea"])
def test_places_are_found_wherever_they_are_in_a_long_text(pattern):
    text = "".join(f"{'e' * (at % 5)} tea\n x {'y' * (at % 97)} " for at in range(3000))
    places = re.findall(r"\s+".join(pattern.split()), text)

    assert f"{len(places)} places with" in found_text(TEA, text, pattern)[0]
    assert f"{len(text)} places" in found_text(TEA, "e" * len(text), "e")[0]


@pytest.mark.parametrize("at", [0, 8185, 8190, 8192, 100_000])
def test_an_excerpt_is_found_wherever_it_is_in_a_long_text(at):
    text = f"{'x ' * at}oolong{' y' * 1000}"

    assert "oolong" in excerpt(text, "price of oolong", 100)
    assert "1 place with" in found_text(TEA, text, "oolong y")[0]


def test_an_excerpt_is_the_part_with_the_words():
    text = f"{'x ' * 500}oolong {'y ' * 500}"

    assert "oolong" in excerpt(text, "price of oolong", 100)
    assert len(excerpt(text, "oolong", 100)) <= 100
    assert excerpt(text, "?", 10) == "x x x x…"
    assert excerpt("short", "x", 100) == "short"
    assert excerpt(text, "\ud800(", 100)
