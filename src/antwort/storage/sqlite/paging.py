"""Some of a list, from a cursor on. One way for every list of every table."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from antwort.engine.stores import PageQuery, UnknownCursor
from antwort.storage.sqlite.database import Rows


class Listing(Struct, frozen=True):
    """A list: rows of a table that meet a condition, in the order of their keys. None of it comes from a caller."""

    table: str
    where: str
    values: dict[str, object]

    def select(self, columns: str, condition: str, rest: str = "") -> str:
        """A statement about rows of this list. Also where it says whose they are."""
        said = (self.table, "WHERE tenant = :tenant AND", self.where, "AND", condition, rest)
        return f"SELECT {columns} FROM {' '.join(said)}"  # noqa: S608 — written in this package, values are bound


def page(rows: Rows, listing: Listing, column: str, query: PageQuery) -> tuple[list[Any], bool]:
    """One column of the rows that a query asks for, and whether there are more in the direction that it looks."""
    found, more = page_of_rows(rows, listing, column, query)
    return [value for (value,) in found], more


def page_of_rows(rows: Rows, listing: Listing, columns: str, query: PageQuery) -> tuple[list[tuple[Any, ...]], bool]:
    """The same, with several columns."""
    ascending = query.order == "asc"
    after = _key(rows, listing, "after", query.after)
    before = _key(rows, listing, "before", query.before)
    low, high = (after, before) if ascending else (before, after)
    backwards = query.before is not None and query.after is None  # the nearest to `before` are those to have
    direction = "ASC" if ascending != backwards else "DESC"
    found = rows.run(
        listing.select(
            columns,
            "(:low IS NULL OR key > :low) AND (:high IS NULL OR key < :high)",
            f"ORDER BY key {direction} LIMIT :limit",
        ),
        **listing.values,
        low=low,
        high=high,
        limit=max(query.limit, 0) + 1,
    ).fetchall()
    more = len(found) > query.limit
    data = found[: query.limit]
    return (data[::-1] if backwards else data), more


def _key(rows: Rows, listing: Listing, param: Literal["after", "before"], identifier: str | None) -> int | None:
    if identifier is None:
        return None
    key = rows.one(listing.select("min(key)", "id = :cursor"), **listing.values, cursor=identifier)
    if key is None or key[0] is None:
        raise UnknownCursor(param, identifier)
    return int(key[0])
