"""Base of the conformance tests: opening a store, two tenants, and assertions with both values in the message."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from antwort.engine.stores import Owner, PageQuery, RecordPage, Store, UnknownCursor

T = TypeVar("T")

OWNER = Owner("tenant-a", "key-1")
OWNER_WITH_OTHER_KEY = Owner("tenant-a", "key-2")
OTHER_TENANT = Owner("tenant-b", "key-3")

LISTED_IDS = [f"id_{number}" for number in range(5)]
"""Ids for `check_pages`, in order of creation."""


class Conformance:
    """Opens and closes a store in each test."""

    async def open(self, directory: Path) -> Store:
        """Open the store in a directory: empty if the directory is new."""
        raise NotImplementedError("define open(directory) so that it returns an open Store")

    @asynccontextmanager
    async def opened_store(self, directory: Path) -> AsyncGenerator[Store]:
        """Context manager: the open store."""
        store = await self.open(directory)
        try:
            yield store
        finally:
            await store.aclose()


def check(condition: bool, message: str) -> None:  # noqa: FBT001 - an assertion
    """Assert, even with `python -O`."""
    if not condition:
        raise AssertionError(message)


def check_equal(actual: object, expected: object) -> None:
    """Assert equality."""
    check(actual == expected, f"\n  got      {actual!r}\n  expected {expected!r}")


def not_none(value: T | None) -> T:
    """Assert that a value is not None."""
    if value is None:
        raise AssertionError("got None, expected a value")
    return value


def message(identifier: str, text: str = "…") -> dict[str, Any]:
    """A message item with unknown fields."""
    content = [{"type": "input_text", "text": text, "x-unknown": {"deep": [1, None, 2.5]}}]
    return {"id": identifier, "type": "message", "role": "user", "content": content}


async def chunks(*pieces: bytes) -> AsyncIterator[bytes]:
    """File content, in chunks."""
    for piece in pieces:
        yield piece


async def check_pages(
    list_page: Callable[[PageQuery], Awaitable[RecordPage | None]], get_id: Callable[[Any], str]
) -> None:
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


async def check_unknown_cursor(list_page: Callable[[PageQuery], Awaitable[object]], query: PageQuery) -> None:
    """Check that a query raises `UnknownCursor` with the parameter and its value."""
    try:
        page = await list_page(query)
    except UnknownCursor as error:
        check_equal(error.value, query.after if error.param == "after" else query.before)
    else:
        raise AssertionError(f"returned {page!r}, expected UnknownCursor")
