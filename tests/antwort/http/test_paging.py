from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from antwort.api.errors import ApiError
from antwort.api.projection import ResponseView
from antwort.engine.ports import Page, PageQuery
from antwort.http.paging import first_and_last, item_page, parse_boolean, parse_include, parse_integer, parse_page_query


def asked(query: str) -> Request:
    return Request({"type": "http", "query_string": query.encode(), "headers": []})


def refusal(ask) -> tuple[str | None, str | None]:
    with pytest.raises(ApiError) as caught:
        ask()
    assert caught.value.status == 400
    return caught.value.param, caught.value.code


def test_a_page_is_the_newest_twenty_unless_said_otherwise():
    assert parse_page_query(asked("")) == PageQuery(limit=20, order="desc")
    assert parse_page_query(asked("limit=&after=&before=")) == PageQuery(limit=20, order="desc")
    given = parse_page_query(asked("limit=3&order=asc&after=a&before=b"))
    assert given == PageQuery(limit=3, order="asc", after="a", before="b")
    assert parse_page_query(asked(""), max_limit=10_000, default_limit=10_000).limit == 10_000


@pytest.mark.parametrize(
    "query, param, code",
    [
        ("limit=0", "limit", "integer_below_min_value"),
        ("limit=-1", "limit", "integer_below_min_value"),
        ("limit=101", "limit", "integer_above_max_value"),
        ("limit=1.5", "limit", "invalid_type"),
        ("limit=ten", "limit", "invalid_type"),
        ("limit=٣", "limit", "invalid_type"),
        ("limit=" + "9" * 400, "limit", "invalid_type"),
        ("limit=--1", "limit", "invalid_type"),
        ("order=up", "order", "invalid_value"),
        ("order=", "order", "invalid_value"),
    ],
)
def test_a_wrong_page_is_refused_by_name(query, param, code):
    assert refusal(lambda: parse_page_query(asked(query))) == (param, code)


def test_openai_s_own_words_for_a_limit_that_is_too_high():
    with pytest.raises(
        ApiError, match=r"Invalid 'limit': integer above maximum value. Expected a value <= 100, but got 101"
    ):
        parse_page_query(asked("limit=101"))


@given(st.text() | st.integers().map(str))
def test_any_text_is_a_number_or_an_error(text):
    request = Request({"type": "http", "query_string": b"", "headers": []})
    request.__dict__["_query_params"] = {"n": text}
    if re.fullmatch("-?[0-9]{1,15}|", text):
        assert parse_integer(request, "n", 7) == int(text or 7)
    else:
        assert refusal(lambda: parse_integer(request, "n", 7)) == ("n", "invalid_type")


@pytest.mark.parametrize("text, value", [("true", True), ("1", True), ("TRUE", True), ("false", False), ("0", False)])
def test_a_flag_is_yes_or_no(text, value):
    assert parse_boolean(asked(f"stream={text}"), "stream") is value
    assert parse_boolean(asked(f"stream={text}"), "stream", default=not value) is value


def test_a_flag_that_is_not_given_is_as_usual_and_one_that_is_neither_is_refused():
    assert parse_boolean(asked(""), "stream") is False
    assert parse_boolean(asked("stream="), "stream", default=True) is True
    assert refusal(lambda: parse_boolean(asked("stream=maybe"), "stream")) == ("stream", "invalid_type")


def test_what_to_include_is_written_in_either_way():
    either = "include[]=file_search_call.results&include=reasoning.encrypted_content"

    assert parse_include(asked(either)) == {"file_search_call.results", "reasoning.encrypted_content"}
    assert parse_include(asked("")) == frozenset()
    assert refusal(lambda: parse_include(asked("include[]=file_search_call.results&include[]=x")))[0] == "include[1]"


def test_a_list_says_where_it_begins_and_ends():
    items: list[dict[str, Any]] = [{"id": "msg_1", "type": "message"}, {"id": "msg_2", "type": "message"}]
    page = item_page(Page(items, has_more=True), ResponseView())

    assert (page.object, page.data, page.has_more) == ("list", items, True)
    assert (page.first_id, page.last_id) == ("msg_1", "msg_2")
    assert first_and_last([]) == (None, None)
