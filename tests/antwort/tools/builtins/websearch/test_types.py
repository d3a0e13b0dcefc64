from __future__ import annotations

import json

import pytest

from antwort.api.tools import UserLocation
from antwort.tools.builtins.websearch.types import (
    MAX_PARTS,
    MAX_QUERIES,
    MAX_QUERY,
    BadSearchArguments,
    FindInPage,
    OpenPage,
    Search,
    action_item,
    empty_action,
    function_specs,
    read_action,
)


@pytest.mark.parametrize(
    "function, arguments, action",
    [
        ("web_search", {"queries": ["tea", " tea ", "oolong\nprice"]}, Search(("tea", "oolong price"))),
        ("web_search", {"query": "tea"}, Search(("tea",))),
        ("web_search", {"queries": "tea"}, Search(("tea",))),
        ("web_search", ["tea"], Search(("tea",))),
        ("web_search", "tea", Search(("tea",))),
        ("web_search", {"queries": ["tea", 5, None, ""]}, Search(("tea",))),
        ("web_search", {"queries": ["tea \ud800"]}, Search(("tea \ufffd",))),
        ("open_page", {"url": "https://tea.example"}, OpenPage("https://tea.example")),
        ("open_page", {"url": "https://tea.example", "part": 3}, OpenPage("https://tea.example", 3)),
        ("open_page", {"url": "https://tea.example", "part": -1}, OpenPage("https://tea.example")),
        ("open_page", {"url": "https://tea.example", "part": 10**9}, OpenPage("https://tea.example", MAX_PARTS)),
        ("open_page", {"url": 2}, OpenPage("[2]")),
        ("open_page", "https://tea.example", OpenPage("https://tea.example")),
        ("find_in_page", {"url": "[1]", "pattern": " the  price "}, FindInPage("[1]", "the price")),
    ],
)
def test_arguments_are_read_where_they_are_unambiguous(function, arguments, action):
    assert read_action(function, json.dumps(arguments)) == action


def test_queries_are_limited_in_number_and_length():
    found = read_action("web_search", json.dumps({"queries": [f"{n} {'x' * 1000}" for n in range(50)]}))

    assert isinstance(found, Search)
    assert [len(query) for query in found.queries] == [MAX_QUERY] * MAX_QUERIES


@pytest.mark.parametrize(
    "function, written, message",
    [
        ("web_search", '{"queries": ["te', "not valid JSON"),
        ("web_search", "[" * 100_000, "not valid JSON"),
        ("web_search", "", '"queries"'),
        ("web_search", "{}", '"queries"'),
        ("web_search", '{"queries": []}', '"queries"'),
        ("web_search", '{"queries": [" "]}', '"queries"'),
        ("web_search", "7", "JSON object"),
        ("open_page", "{}", '"url"'),
        ("open_page", '{"url": ["x"]}', '"url"'),
        ("open_page", json.dumps({"url": "https://" + "x" * 5000}), "longer than"),
        ("find_in_page", '{"url": "https://tea.example"}', '"pattern"'),
        ("find_in_page", '{"url": "https://tea.example", "pattern": " "}', '"pattern"'),
    ],
)
def test_other_arguments_are_refused_with_what_to_write(function, written, message):
    with pytest.raises(BadSearchArguments, match=message):
        read_action(function, written)


def test_actions_have_the_keys_of_the_wire():
    assert action_item(Search(("a", "b"))) == {"type": "search", "query": "a", "queries": ["a", "b"]}
    assert action_item(OpenPage("u", 2)) == {"type": "open_page", "url": "u"}
    assert action_item(FindInPage("u", "p")) == {"type": "find_in_page", "url": "u", "pattern": "p"}
    assert empty_action("web_search") == {"type": "search", "query": "", "queries": []}
    assert empty_action("open_page")["type"] == "open_page"
    assert empty_action("find_in_page")["type"] == "find_in_page"


def test_the_functions_say_what_is_possible():
    location = UserLocation(city="Zürich", country="CH", timezone="Europe/Zurich")
    search, *others = function_specs(opens_pages=True, domains=("tea.example",), location=location, is_live=False)

    assert [one.name for one in others] == ["open_page", "find_in_page"]
    assert "Markdown link" in search.full_description
    assert "tea.example" in search.full_description
    assert "Zürich, CH; time zone Europe/Zurich" in search.full_description
    assert "nothing new is fetched" in search.full_description


def test_without_a_sandbox_only_the_search_is_offered():
    (search,) = function_specs(opens_pages=False, domains=(), location=None, is_live=True)

    assert search.current_state == "Pages cannot be opened here: answer from the texts of the results."


def test_without_options_nothing_is_added_to_the_description():
    (search, *_) = function_specs(opens_pages=True, domains=(), location=UserLocation(), is_live=True)

    assert search.current_state is None
