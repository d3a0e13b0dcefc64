"""Web search (`web_search`): the provider searches the web, opens pages, and finds text in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weakincentives.adapters.openai.native_tools.capability import (
    Capability,
    NativeSection,
    ParsedCall,
    ProviderRan,
    ResponseContext,
    check_one_of,
    failed_result,
    without_none,
)
from weakincentives.adapters.openai.wire import Wire, as_object, as_objects, get_str, get_strs
from weakincentives.prompt import ToolResult

_CONTEXT_SIZES = ("low", "medium", "high")


@dataclass(frozen=True, slots=True)
class WebSearchConfig:
    """The scope of the search. For None the provider's default applies.

    `user_location` is the approximate location of the user: city, country, region, timezone. With
    `external_web_access=False` only pages that the provider has stored are searched.
    """

    allowed_domains: tuple[str, ...] = ()
    search_context_size: str | None = None
    user_location: Mapping[str, str] | None = field(default=None, hash=False)
    external_web_access: bool | None = None


@dataclass(frozen=True, slots=True)
class WebSearchCall:
    """The action of the model: `search`, `open_page` or `find_in_page`. Fields of other actions are empty."""

    action: str = "search"
    query: str = ""
    queries: tuple[str, ...] = ()
    url: str = ""
    pattern: str = ""


@dataclass(frozen=True, slots=True)
class WebSearchResult:
    """The URLs that the provider read. Their content goes only to the model."""

    sources: tuple[str, ...] = ()

    def render(self) -> str:
        """One URL per line."""
        return "\n".join(self.sources) or "(no sources)"


class WebSearch(Capability):
    """`web_search` on the wire."""

    name = "web_search"
    items = frozenset({"web_search_call"})
    config_type = WebSearchConfig
    fields = ("filters", "search_context_size", "user_location", "external_web_access")
    includes = ("web_search_call.action.sources",)
    example = ProviderRan(
        WebSearchCall("search", "tea", ("tea",), "https://example.com/", "tea"),
        ToolResult("", WebSearchResult(("https://example.com/",))),
    )

    def declaration_fields(self, config: WebSearchConfig) -> Wire:
        check_one_of(config.search_context_size, _CONTEXT_SIZES, "search_context_size")
        domains = list(config.allowed_domains)
        location = config.user_location
        return without_none(
            filters={"allowed_domains": domains} if domains else None,
            search_context_size=config.search_context_size,
            user_location={"type": "approximate", **location} if location else None,
            external_web_access=config.external_web_access,
        )

    def parse_call(self, item: Wire, response: ResponseContext, config: object) -> ParsedCall:
        _ = response, config
        action = as_object(item.get("action") or {}, "action")
        queries = get_strs(action, "queries")
        query = get_str(action, "query") or next(iter(queries), "")
        params = WebSearchCall(
            action=get_str(action, "type") or "search",
            query=query,
            queries=queries or ((query,) if query else ()),
            url=get_str(action, "url"),
            pattern=get_str(action, "pattern"),
        )
        sources = tuple(get_str(one, "url") for one in as_objects(action.get("sources"), "sources"))
        value = WebSearchResult(sources or ((params.url,) if params.url else ()))
        return ProviderRan(params, failed_result(item) or ToolResult.ok(value))


CAPABILITY = WebSearch()


class OpenAIWebSearchSection(NativeSection[WebSearchConfig]):
    """Lets the model search the web."""

    capability = CAPABILITY
