"""Cursor paging for every table: `after`, `before`, `limit`, `order`."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from antwort.engine.stores import PageQuery, UnknownCursor
from antwort.storage.sqlite.database import TenantRows


class PagedQuery(Struct, frozen=True):
    """The rows of a table that meet a condition, ordered by key. Table and condition are constants."""

    table: str
    condition: str
    values: dict[str, object]

    def select(self, columns: str, condition: str, rest: str = "") -> str:
        """A SELECT on these rows, restricted to the tenant."""
        parts = (self.table, "WHERE tenant = :tenant AND", self.condition, "AND", condition, rest)
        return f"SELECT {columns} FROM {' '.join(parts)}"  # noqa: S608 - constants of this package, values are bound


def page_column(rows: TenantRows, listing: PagedQuery, column: str, query: PageQuery) -> tuple[list[Any], bool]:
    """One column of a page, and whether more rows follow in its direction."""
    found, more = page_rows(rows, listing, column, query)
    return [value for (value,) in found], more


def page_rows(
    rows: TenantRows, paged: PagedQuery, columns: str, query: PageQuery
) -> tuple[list[tuple[Any, ...]], bool]:
    """The rows of a page, and whether more rows follow in its direction."""
    ascending = query.order == "asc"
    after = _key(rows, paged, "after", query.after)
    before = _key(rows, paged, "before", query.before)
    low, high = (after, before) if ascending else (before, after)
    backwards = query.before is not None and query.after is None  # the page ends directly before the cursor
    direction = "ASC" if ascending != backwards else "DESC"
    found = rows.execute(
        paged.select(
            columns,
            "(:low IS NULL OR key > :low) AND (:high IS NULL OR key < :high)",
            f"ORDER BY key {direction} LIMIT :limit",
        ),
        **paged.values,
        low=low,
        high=high,
        limit=max(query.limit, 0) + 1,
    ).fetchall()
    more = len(found) > query.limit
    data = found[: query.limit]
    return (data[::-1] if backwards else data), more


def _key(
    rows: TenantRows, listing: PagedQuery, param: Literal["after", "before"], identifier: str | None
) -> int | None:
    if identifier is None:
        return None
    key = rows.fetchone(listing.select("min(key)", "id = :cursor"), **listing.values, cursor=identifier)
    if key is None or key[0] is None:
        raise UnknownCursor(param, identifier)
    return int(key[0])
