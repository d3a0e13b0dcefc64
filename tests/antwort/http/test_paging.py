from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from antwort.api.errors import ApiError
from antwort.api.projection import ResponseView
from antwort.engine.stores import PageQuery, RecordPage
from antwort.http.paging import first_and_last, item_page, parse_boolean, parse_include, parse_integer, parse_page_query


def request(query: str) -> Request:
    return Request({"type": "http", "query_string": query.encode(), "headers": []})


def rejection(parse) -> tuple[str | None, str | None]:
    with pytest.raises(ApiError) as caught:
        parse()
    assert caught.value.status == 400
    return caught.value.param, caught.value.code


def test_the_default_page_is_the_newest_20():
    assert parse_page_query(request("")) == PageQuery(limit=20, order="desc")
    assert parse_page_query(request("after=&before=")) == PageQuery(limit=20, order="desc")
    query = parse_page_query(request("limit=3&order=asc&after=a&before=b"))
    assert query == PageQuery(limit=3, order="asc", after="a", before="b")
    assert parse_page_query(request(""), max_limit=10_000, default_limit=10_000).limit == 10_000


@pytest.mark.parametrize(
    "query, param, code",
    [
        ("limit=0", "limit", "integer_below_min_value"),
        ("limit=-1", "limit", "integer_below_min_value"),
        ("limit=101", "limit", "integer_above_max_value"),
        ("limit=1.5", "limit", "invalid_type"),
        ("limit=ten", "limit", "invalid_type"),
        ("limit=", "limit", "invalid_type"),
        ("limit=٣", "limit", "invalid_type"),
        ("limit=" + "9" * 400, "limit", "invalid_type"),
        ("limit=--1", "limit", "invalid_type"),
        ("order=up", "order", "invalid_value"),
        ("order=", "order", "invalid_value"),
    ],
)
def test_an_invalid_paging_parameter_is_named(query, param, code):
    assert rejection(lambda: parse_page_query(request(query))) == (param, code)


def test_a_limit_above_the_maximum_has_openai_s_message():
    with pytest.raises(
        ApiError, match=r"Invalid 'limit': integer above maximum value. Expected a value <= 100, but got 101"
    ):
        parse_page_query(request("limit=101"))


@given(st.text() | st.integers().map(str))
def test_any_text_is_an_integer_or_an_error(text):
    numeric = Request({"type": "http", "query_string": b"", "headers": []})
    numeric.__dict__["_query_params"] = {"n": text}
    if re.fullmatch("-?[0-9]{1,15}", text):
        assert parse_integer(numeric, "n", 7) == int(text)
    else:
        assert rejection(lambda: parse_integer(numeric, "n", 7)) == ("n", "invalid_type")


@pytest.mark.parametrize("text, value", [("true", True), ("1", True), ("TRUE", True), ("false", False), ("0", False)])
def test_a_boolean_parameter(text, value):
    assert parse_boolean(request(f"stream={text}"), "stream") is value
    assert parse_boolean(request(f"stream={text}"), "stream", default=not value) is value


def test_a_missing_boolean_is_the_default_and_an_invalid_one_is_an_error():
    assert parse_boolean(request(""), "stream") is False
    assert parse_boolean(request(""), "stream", default=True) is True
    assert rejection(lambda: parse_boolean(request("stream="), "stream")) == ("stream", "invalid_type")
    assert rejection(lambda: parse_boolean(request("stream=maybe"), "stream")) == ("stream", "invalid_type")


def test_include_accepts_both_spellings():
    query = "include[]=file_search_call.results&include=reasoning.encrypted_content"

    assert parse_include(request(query)) == {"file_search_call.results", "reasoning.encrypted_content"}
    assert parse_include(request("")) == frozenset()
    assert (
        rejection(lambda: parse_include(request("include[]=file_search_call.results&include[]=x")))[0] == "include[1]"
    )


def test_an_item_page_has_first_id_and_last_id():
    items: list[dict[str, Any]] = [
        {"id": "msg_1", "type": "message", "status": "incomplete"},
        {"id": "msg_2", "type": "message", "status": "completed"},
    ]
    page = item_page(RecordPage(items, has_more=True), ResponseView())

    assert (page.object, page.data, page.has_more) == ("list", items, True)
    assert (page.first_id, page.last_id) == ("msg_1", "msg_2")
    assert first_and_last([]) == (None, None)
