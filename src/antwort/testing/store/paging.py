"""Checks of cursor paging, for every list of a store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from antwort.engine.stores import PageQuery, RecordPage, UnknownCursor
from antwort.testing.checks import check_equal, not_none

ListPage: TypeAlias = Callable[[PageQuery], Awaitable[RecordPage | None]]

LISTED_IDS = [f"id_{number}" for number in range(5)]
"""Ids for `check_pages`, in order of creation."""


async def check_pages(list_page: ListPage, get_id: Callable[[Any], str]) -> None:
    """Check all combinations of paging parameters on a list of `LISTED_IDS`."""

    async def ids(query: PageQuery) -> tuple[list[str], bool]:
        page = not_none(await list_page(query))
        return [get_id(entry) for entry in page.data], page.has_more

    one, two, three, four, five = LISTED_IDS
    nothing: list[str] = []
    check_equal(await ids(PageQuery()), ([five, four, three, two, one], False))
    check_equal(await ids(PageQuery(order="asc")), (LISTED_IDS, False))
    check_equal(await ids(PageQuery(order="asc", limit=5)), (LISTED_IDS, False))
    check_equal(await ids(PageQuery(order="asc", limit=2)), ([one, two], True))
    check_equal(await ids(PageQuery(order="asc", limit=2, after=two)), ([three, four], True))
    check_equal(await ids(PageQuery(order="asc", limit=2, after=three)), ([four, five], False))
    check_equal(await ids(PageQuery(order="asc", after=five)), (nothing, False))
    check_equal(await ids(PageQuery(limit=2)), ([five, four], True))
    check_equal(await ids(PageQuery(limit=2, after=four)), ([three, two], True))
    check_equal(await ids(PageQuery(limit=3, after=four)), ([three, two, one], False))
    check_equal(await ids(PageQuery(order="asc", limit=2, before=four)), ([two, three], True))
    check_equal(await ids(PageQuery(order="asc", limit=3, before=four)), ([one, two, three], False))
    check_equal(await ids(PageQuery(limit=2, before=two)), ([four, three], True))
    check_equal(await ids(PageQuery(before=five)), (nothing, False))
    check_equal(await ids(PageQuery(order="asc", after=one, before=five, limit=2)), ([two, three], True))
    check_equal(await ids(PageQuery(after=five, before=one)), ([four, three, two], False))
    await check_unknown_cursor(list_page, PageQuery(after="id_unknown"))
    await check_unknown_cursor(list_page, PageQuery(before="id_unknown"))


async def check_unknown_cursor(list_page: ListPage, query: PageQuery) -> None:
    """Check that a query raises `UnknownCursor` with the parameter and its value."""
    try:
        page = await list_page(query)
    except UnknownCursor as error:
        check_equal(error.value, query.after if error.param == "after" else query.before)
    else:
        raise AssertionError(f"returned {page!r}, expected UnknownCursor")
