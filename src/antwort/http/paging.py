"""What a query may ask: which page of a list, and what of its items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from starlette.requests import Request

from antwort.api.errors import invalid
from antwort.api.objects import ItemPage
from antwort.api.projection import ResponseView
from antwort.api.requests import Include
from antwort.engine.ports import Page, PageQuery

MOST, USUAL = 100, 20
"""How many a page has, unless a list says otherwise."""


INCLUDE_PARAMETER: dict[str, dict[str, Any]] = {
    "include[]": {"type": "array", "items": {"enum": list(get_args(Include))}}
}
"""OpenAPI's description of what `included` parses."""


def paging_parameters(most: int = MOST, usual: int = USUAL) -> dict[str, dict[str, Any]]:
    """OpenAPI's description of what `page_query` parses."""
    return {
        "after": {"type": "string"},
        "before": {"type": "string"},
        "limit": {"type": "integer", "minimum": 1, "maximum": most, "default": usual},
        "order": {"enum": ["asc", "desc"], "default": "desc"},
    }


def page_query(request: Request, *, most: int = MOST, usual: int = USUAL) -> PageQuery:
    """Which part of a list is asked for."""
    given = request.query_params
    order = given.get("order", "desc")
    if order not in ("asc", "desc"):
        raise invalid(f"Invalid value: '{order}'. Supported values are: 'asc' and 'desc'.", param="order")
    limit = whole_number(request, "limit", usual)
    if limit > most:
        raise invalid(
            f"Invalid 'limit': integer above maximum value. Expected a value <= {most}, but got {limit} instead.",
            param="limit",
            code="integer_above_max_value",
        )
    if limit < 1:
        raise invalid(
            f"Invalid 'limit': integer below minimum value. Expected a value >= 1, but got {limit} instead.",
            param="limit",
            code="integer_below_min_value",
        )
    return PageQuery(limit=limit, order=order, after=given.get("after") or None, before=given.get("before") or None)


def whole_number(request: Request, param: str, usual: int) -> int:
    """A number in the query."""
    text = request.query_params.get(param)
    if text is None or text == "":
        return usual
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 16):  # noqa: PLR2004 - more is no number of ours
        raise invalid(f"Invalid type for '{param}': expected an integer.", param=param, code="invalid_type")
    return int(text)


def flag(request: Request, param: str, *, usual: bool = False) -> bool:
    """A yes or no in the query."""
    text = request.query_params.get(param, "").lower()
    if text not in ("true", "false", "1", "0", ""):
        raise invalid(f"Invalid type for '{param}': expected a boolean.", param=param, code="invalid_type")
    return text in ("true", "1") if text else usual


def included(request: Request) -> frozenset[str]:
    """What the query asks to be shown of items. SDKs write `include[]` once for each."""
    given = [*request.query_params.getlist("include[]"), *request.query_params.getlist("include")]
    known = get_args(Include)
    for at, value in enumerate(given):
        if value not in known:
            raise invalid(
                f"Invalid value: '{value}'. Supported values are: {', '.join(map(repr, known))}.",
                param=f"include[{at}]",
            )
    return frozenset(given)


def listed(page: Page, view: ResponseView) -> ItemPage:
    """A page of items, as the wire has it and the caller wants to see it."""
    first, last = ends([item["id"] for item in page.data])
    return ItemPage(data=[view.item(item) for item in page.data], first_id=first, last_id=last, has_more=page.has_more)


def ends(ids: Sequence[str]) -> tuple[str | None, str | None]:
    """The ids on a page that more is asked for with."""
    return (ids[0], ids[-1]) if ids else (None, None)
