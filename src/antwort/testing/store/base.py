"""What the tests of all ports start from: a store at a place, two tenants, and assertions that show both sides."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from antwort.engine.ports import Owner, Page, PageQuery, Store, UnknownCursor

T = TypeVar("T")

OWNER = Owner("tenant-a", "key-1")
OWNER_WITH_OTHER_KEY = Owner("tenant-a", "key-2")
OTHER_TENANT = Owner("tenant-b", "key-3")

LISTED_IDS = [f"id_{number}" for number in range(5)]
"""Ids for `pages`, in the order of arrival."""


class Conformance:
    """A store is opened for each test, and closed."""

    async def open(self, directory: Path) -> Store:
        """The store at a place: empty when the place is new."""
        raise NotImplementedError("define open(place) so that it returns an open Store")

    @asynccontextmanager
    async def opened_store(self, directory: Path) -> AsyncGenerator[Store]:
        """The store at a place, for a while."""
        store = await self.open(directory)
        try:
            yield store
        finally:
            await store.aclose()


def check(condition: bool, message: str) -> None:  # noqa: FBT001 — there is nothing else that it could be
    """Assert, also under `python -O`."""
    if not condition:
        raise AssertionError(message)


def check_equal(actual: object, expected: object) -> None:
    """Both are the same."""
    check(actual == expected, f"\n  got      {actual!r}\n  expected {expected!r}")


def not_none(value: T | None) -> T:
    """It is not None."""
    if value is None:
        raise AssertionError("got None for what should be there")
    return value


def message(identifier: str, text: str = "…") -> dict[str, Any]:
    """An item, with fields that nobody knows."""
    content = [{"type": "input_text", "text": text, "x-unknown": {"deep": [1, None, 2.5]}}]
    return {"id": identifier, "type": "message", "role": "user", "content": content}


async def chunks(*pieces: bytes) -> AsyncIterator[bytes]:
    """A content."""
    for piece in pieces:
        yield piece


async def check_pages(ask: Callable[[PageQuery], Awaitable[Page | None]], name: Callable[[Any], str]) -> None:
    """A list of `LISTED`, asked for in every way. `name` tells the id of what is listed."""

    async def answer(query: PageQuery) -> tuple[list[str], bool]:
        page = not_none(await ask(query))
        return [name(entry) for entry in page.data], page.has_more

    one, two, three, four, five = LISTED_IDS
    nothing: list[str] = []
    check_equal(await answer(PageQuery()), ([five, four, three, two, one], False))
    check_equal(await answer(PageQuery(order="asc")), (LISTED_IDS, False))
    check_equal(await answer(PageQuery(order="asc", limit=5)), (LISTED_IDS, False))
    check_equal(await answer(PageQuery(order="asc", limit=2)), ([one, two], True))
    check_equal(await answer(PageQuery(order="asc", limit=2, after=two)), ([three, four], True))
    check_equal(await answer(PageQuery(order="asc", limit=2, after=three)), ([four, five], False))
    check_equal(await answer(PageQuery(order="asc", after=five)), (nothing, False))
    check_equal(await answer(PageQuery(limit=2)), ([five, four], True))
    check_equal(await answer(PageQuery(limit=2, after=four)), ([three, two], True))
    check_equal(await answer(PageQuery(limit=3, after=four)), ([three, two, one], False))
    check_equal(await answer(PageQuery(order="asc", limit=2, before=four)), ([two, three], True))
    check_equal(await answer(PageQuery(order="asc", limit=3, before=four)), ([one, two, three], False))
    check_equal(await answer(PageQuery(limit=2, before=two)), ([four, three], True))
    check_equal(await answer(PageQuery(before=five)), (nothing, False))
    check_equal(await answer(PageQuery(order="asc", after=one, before=five, limit=2)), ([two, three], True))
    check_equal(await answer(PageQuery(after=five, before=one)), ([four, three, two], False))
    await check_unknown_cursor(ask, PageQuery(after="id_unknown"))
    await check_unknown_cursor(ask, PageQuery(before="id_unknown"))


async def check_unknown_cursor(ask: Callable[[PageQuery], Awaitable[object]], query: PageQuery) -> None:
    """`UnknownCursor`, which names the field and what was in it."""
    try:
        page = await ask(query)
    except UnknownCursor as error:
        check_equal(error.value, query.after if error.param == "after" else query.before)
    else:
        raise AssertionError(f"returned {page!r} and should have raised UnknownCursor")
