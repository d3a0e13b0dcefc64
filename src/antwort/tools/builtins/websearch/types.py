"""Functions of the web search: their descriptions for the model, and the parser of their arguments. Pure.

Small models write arguments that are nearly valid. What is unambiguous is accepted; the rest is a `BadSearchArguments`
whose message says what to write instead.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias, cast

from msgspec import Struct

from antwort.api.tools import UserLocation
from antwort.engine.ports import FunctionSpec

NAME: Final = "web_search"
OPEN_PAGE: Final = "open_page"
FIND_IN_PAGE: Final = "find_in_page"
TOOL_TYPES: Final = (
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
)

MAX_QUERIES: Final = 5
MAX_QUERY: Final = 400
MAX_PATTERN: Final = 200
MAX_PARTS: Final = 1000
_MAX_URL: Final = 4096

ContextSize: TypeAlias = Literal["low", "medium", "high"]


class TextBudget(Struct, frozen=True):
    """How much text the model gets."""

    results: int
    result_text: int
    """Characters of each result."""
    page_text: int
    """Characters of one part of a page."""


BUDGETS: Final[dict[ContextSize, TextBudget]] = {
    "low": TextBudget(5, 400, 4_000),
    "medium": TextBudget(8, 1_000, 12_000),
    "high": TextBudget(12, 2_500, 30_000),
}
"""By `search_context_size`."""

_CITE: Final = (
    "In your answer, cite each page that you use right behind the statement, as a Markdown link to its exact URL or by "
    "its number in brackets, such as [1]."
)
_SEARCH: Final = f"""\
Search the web. Give one to {MAX_QUERIES} short queries in words that a good page would contain; several queries at \
once for different aspects. You get numbered results with title, URL and a text about each page."""
_OPEN: Final = """\
Open a web page by its URL and read its text, for details that the search results do not have. A long page comes in \
parts: ask for the next with `part`."""
_FIND: Final = """\
Find a text in a web page: you get each place of the page that contains it. Use it for long pages."""


def _parameters(required: Sequence[str], **properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


_URL: Final = {"type": "string", "description": "The URL of the page, as in a result."}


def function_specs(
    *, opens_pages: bool, domains: Sequence[str], location: UserLocation | None, is_live: bool
) -> tuple[FunctionSpec, ...]:
    """The functions that the model is offered; without `opens_pages` only the search."""
    queries = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_QUERIES}
    notes = [
        "" if opens_pages else "Pages cannot be opened here: answer from the texts of the results.",
        f"Only pages of these domains are found: {', '.join(domains)}." if domains else "",
        "" if is_live else "Only pages that were retrieved earlier can be found; nothing new is fetched.",
        _describe(location),
    ]
    state = "\n".join(filter(None, notes)) or None
    search = FunctionSpec(NAME, f"{_SEARCH}\n{_CITE}", _parameters(["queries"], queries=queries), current_state=state)
    if not opens_pages:
        return (search,)
    part = {"type": "integer", "minimum": 1, "description": "Which part of a long page; 1 is the first."}
    pattern = {"type": "string", "description": "The text to find; upper and lower case do not matter."}
    return (
        search,
        FunctionSpec(OPEN_PAGE, _OPEN, _parameters(["url"], url=_URL, part=part)),
        FunctionSpec(FIND_IN_PAGE, _FIND, _parameters(["url", "pattern"], url=_URL, pattern=pattern)),
    )


def _describe(location: UserLocation | None) -> str:
    if location is None:
        return ""
    place = ", ".join(filter(None, (location.city, location.region, location.country)))
    zone = f"time zone {location.timezone}" if location.timezone else ""
    described = "; ".join(filter(None, (place, zone)))
    return f"The user is approximately here: {' '.join(described.split())}." if described else ""


class BadSearchArguments(ValueError):
    """The arguments of a call are invalid. The message tells the model how to write them."""


class Search(Struct, frozen=True):
    """Search with these queries."""

    queries: tuple[str, ...]


class OpenPage(Struct, frozen=True):
    """Open a page."""

    url: str
    part: int = 1


class FindInPage(Struct, frozen=True):
    """Find a text in a page."""

    url: str
    pattern: str


SearchAction: TypeAlias = Search | OpenPage | FindInPage


def empty_action(function: str) -> dict[str, Any]:
    """The action, on the wire, of a call whose arguments are not valid."""
    match function:
        case "open_page":
            return action_item(OpenPage(""))
        case "find_in_page":
            return action_item(FindInPage("", ""))
        case _:
            return action_item(Search(()))


def action_item(action: SearchAction) -> dict[str, Any]:
    """An action on the wire."""
    match action:
        case Search(queries=queries):
            return {"type": "search", "query": next(iter(queries), ""), "queries": list(queries)}
        case OpenPage(url=url):
            return {"type": "open_page", "url": url}
        case FindInPage(url=url, pattern=pattern):
            return {"type": "find_in_page", "url": url, "pattern": pattern}


def read_action(function: str, written: str) -> SearchAction:
    """Parse the arguments of a call of this function."""
    try:
        given: object = json.loads(written or "{}", strict=False)
    except (ValueError, RecursionError) as error:
        raise BadSearchArguments(f"The arguments are not valid JSON ({error}). Nothing was searched.") from error
    if isinstance(given, (str, list)):  # the only parameter without its name
        fields: dict[str, object] = {"queries" if function == NAME else "url": cast("object", given)}
    elif isinstance(given, dict):
        fields = cast("dict[str, object]", given)
    else:
        raise BadSearchArguments("The arguments must be a JSON object. Nothing was searched.")
    if function == NAME:
        return Search(_queries(fields))
    url = fields.get("url")
    if isinstance(url, int):
        url = f"[{url}]"
    if not isinstance(url, str) or not (url := _clean(url)):
        raise BadSearchArguments('Give the page as "url", as in a result of the search.')
    if len(url) > _MAX_URL:
        raise BadSearchArguments(f"The URL is longer than {_MAX_URL} characters.")
    if function == FIND_IN_PAGE:
        pattern = fields.get("pattern")
        if not isinstance(pattern, str) or not (pattern := _clean(pattern)):
            raise BadSearchArguments('Give the text to find as "pattern".')
        return FindInPage(url, pattern[:MAX_PATTERN])
    part = fields.get("part")
    return OpenPage(url, min(part, MAX_PARTS) if isinstance(part, int) and part > 1 else 1)


def _queries(fields: dict[str, object]) -> tuple[str, ...]:
    given = fields.get("queries") or fields.get("query")
    texts = cast("list[object]", given) if isinstance(given, list) else [given]
    queries = [_clean(text)[:MAX_QUERY] for text in texts if isinstance(text, str)]
    found = tuple(dict.fromkeys(filter(None, queries)))[:MAX_QUERIES]
    if not found:
        raise BadSearchArguments('Give what to search for as "queries", a list of strings.')
    return found


def _clean(text: str) -> str:
    """On one line, and without unpaired surrogates, which JSON escapes can produce and UTF-8 cannot encode."""
    return " ".join(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").split())
