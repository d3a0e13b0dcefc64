"""Query parameters: paging (`limit`, `order`, `after`, `before`), `include`, integers and booleans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, get_args

from starlette.requests import Request

from antwort.api.errors import invalid, out_of_range, unsupported_value
from antwort.api.objects import ItemPage
from antwort.api.projection import ResponseView
from antwort.api.requests import Include
from antwort.engine.stores import PageQuery, RecordPage

T = TypeVar("T")

MAX_LIMIT, DEFAULT_LIMIT = 100, 20
"""Entries per page, unless a list has other limits."""


INCLUDE_QUERY = {"include[]": {"type": "array", "items": {"enum": list(get_args(Include))}}}
"""OpenAPI's description of what `parse_include` parses."""


def paging_query(max_limit: int = MAX_LIMIT, default_limit: int = DEFAULT_LIMIT) -> dict[str, dict[str, Any]]:
    """OpenAPI's description of what `parse_page_query` parses."""
    return {
        "after": {"type": "string"},
        "before": {"type": "string"},
        "limit": {"type": "integer", "minimum": 1, "maximum": max_limit, "default": default_limit},
        "order": {"enum": ["asc", "desc"], "default": "desc"},
    }


def parse_page_query(request: Request, *, max_limit: int = MAX_LIMIT, default_limit: int = DEFAULT_LIMIT) -> PageQuery:
    """The paging parameters of a request."""
    params = request.query_params
    order = params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise invalid(f"Invalid value: '{order}'. Supported values are: 'asc' and 'desc'.", param="order")
    limit = parse_integer(request, "limit", default_limit)
    if limit > max_limit:
        raise out_of_range("limit", limit, maximum=max_limit)
    if limit < 1:
        raise out_of_range("limit", limit, minimum=1)
    return PageQuery(limit=limit, order=order, after=params.get("after") or None, before=params.get("before") or None)


def parse_integer(request: Request, param: str, default: int) -> int:
    """An integer in the query."""
    text = request.query_params.get(param)
    if text is None:
        return default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 16):  # noqa: PLR2004 - larger than any valid value
        raise invalid(f"Invalid type for '{param}': expected an integer.", param=param, code="invalid_type")
    return int(text)


def parse_boolean(request: Request, param: str, *, default: bool = False) -> bool:
    """A boolean in the query."""
    text = request.query_params.get(param)
    if text is None:
        return default
    if text.lower() not in ("true", "false", "1", "0"):
        raise invalid(f"Invalid type for '{param}': expected a boolean.", param=param, code="invalid_type")
    return text.lower() in ("true", "1")


def parse_include(request: Request) -> frozenset[str]:
    """The values of `include`. SDKs repeat `include[]` for each."""
    values = [*request.query_params.getlist("include[]"), *request.query_params.getlist("include")]
    known = get_args(Include)
    for at, value in enumerate(values):
        if value not in known:
            raise unsupported_value(value, known, f"include[{at}]")
    return frozenset(values)


def item_page(page: RecordPage, view: ResponseView) -> ItemPage:
    """A page of items for the response body, filtered by `view`."""
    first, last = first_and_last([item["id"] for item in page.data])
    data = [view.listed_item(item) for item in page.data]
    return ItemPage(data=data, first_id=first, last_id=last, has_more=page.has_more)


def object_page(kind: Callable[..., T], page: RecordPage, to_object: Callable[[Any], object]) -> T:
    """A page of the objects that `to_object` makes of the records."""
    first, last = first_and_last([record.id for record in page.data])
    return kind(data=[*map(to_object, page.data)], first_id=first, last_id=last, has_more=page.has_more)


def first_and_last(ids: Sequence[str]) -> tuple[str | None, str | None]:
    """`first_id` and `last_id` of a page."""
    return (ids[0], ids[-1]) if ids else (None, None)
