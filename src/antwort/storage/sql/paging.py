"""Cursor paging for every table: `after`, `before`, `limit`, `order`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

from antwort.engine.stores import PageQuery, RecordPage, UnknownCursor
from antwort.storage.sql.rows import TenantRows


class PagedQuery(Struct, frozen=True):
    """The rows of a table that meet a condition, ordered by key. Table and condition are constants."""

    table: str
    condition: str
    values: dict[str, object]

    def select(self, columns: str, condition: str, rest: str = "") -> str:
        """A SELECT on these rows, restricted to the tenant."""
        parts = (self.table, "WHERE tenant = :tenant AND", self.condition, "AND", condition, rest)
        return f"SELECT {columns} FROM {' '.join(parts)}"  # noqa: S608 - constants of this package, values are bound


def read_page(
    rows: TenantRows, paged: PagedQuery, columns: str, query: PageQuery, decode: Callable[[list[Any]], list[Any]]
) -> RecordPage:
    """The records that `decode` makes of the rows of a page, and whether more rows follow in its direction."""
    ascending = query.order == "asc"
    after = _key(rows, paged, "after", query.after)
    before = _key(rows, paged, "before", query.before)
    low, high = (after, before) if ascending else (before, after)
    backwards = query.before is not None and query.after is None  # the page ends directly before the cursor
    direction = "ASC" if ascending != backwards else "DESC"
    found = rows.execute(
        paged.select(
            columns,
            "(CAST(:low AS bigint) IS NULL OR key > :low) AND (CAST(:high AS bigint) IS NULL OR key < :high)",
            f"ORDER BY key {direction} LIMIT :limit",
        ),
        **paged.values,
        low=low,
        high=high,
        limit=max(query.limit, 0) + 1,
    ).fetchall()
    data = found[: query.limit]
    return RecordPage(decode(data[::-1] if backwards else data), has_more=len(found) > query.limit)


def _key(rows: TenantRows, paged: PagedQuery, param: Literal["after", "before"], cursor: str | None) -> int | None:
    if cursor is None:
        return None
    key = rows.fetchone(paged.select("min(key)", "id = :cursor"), **paged.values, cursor=cursor)
    if key is None or key[0] is None:
        raise UnknownCursor(param, cursor)
    return int(key[0])
