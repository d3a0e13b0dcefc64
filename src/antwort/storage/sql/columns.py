"""Items and records as JSON columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec

from antwort.api.items import Raw, kind_of

RowValues: TypeAlias = dict[str, object]

_decode = msgspec.json.Decoder(list[dict[str, Any]]).decode


def item_rows(items: Iterable[Raw]) -> list[RowValues]:
    """The column values of each item. References are marked, so that a search for an item does not find them."""
    return [
        {"id": item.get("id"), "is_reference": kind_of(item) == "item_reference", "body": msgspec.json.encode(item)}
        for item in items
    ]


def decode_items(rows: Iterable[tuple[bytes]]) -> list[Raw]:
    """Decode rows of one `body` column at once, which is much cheaper than one by one."""
    return _decode(b"[" + b",".join([body for (body,) in rows]) + b"]")
