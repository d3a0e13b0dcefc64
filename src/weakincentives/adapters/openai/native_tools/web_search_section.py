"""Web search: the provider searches the web, opens pages, and looks for words in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weakincentives.adapters.openai.native_tools.capability import (
    Capability,
    NativeSection,
    Ran,
    Reading,
    Scene,
    failure,
    one_of,
    without_none,
)
from weakincentives.adapters.openai.wire import Wire, as_object, objects_in, text_in, texts_in
from weakincentives.prompt import ToolResult

_SIZES = ("low", "medium", "high")


@dataclass(frozen=True, slots=True)
class WebSearchConfig:
    """Where to search and how much of it the model gets to see. What is left out is the provider's to choose.

    `user_location` is where the user roughly is: city, country, region, timezone. With `external_web_access=False`
    only what the provider has stored is searched.
    """

    allowed_domains: tuple[str, ...] = ()
    search_context_size: str | None = None
    user_location: Mapping[str, str] | None = field(default=None, hash=False)
    external_web_access: bool | None = None


@dataclass(frozen=True, slots=True)
class WebSearchCall:
    """What the model did: `search`, `open_page` or `find_in_page`. What an action does not have is empty."""

    action: str = "search"
    query: str = ""
    queries: tuple[str, ...] = ()
    url: str = ""
    pattern: str = ""


@dataclass(frozen=True, slots=True)
class WebSearchResult:
    """The addresses that the provider looked at. What it read there it tells only to the model."""

    sources: tuple[str, ...] = ()

    def render(self) -> str:
        """One address a line."""
        return "\n".join(self.sources) or "(no sources told)"


class WebSearch(Capability):
    """`web_search` on the wire."""

    name = "web_search"
    items = frozenset({"web_search_call"})
    config_type = WebSearchConfig
    fields = ("filters", "search_context_size", "user_location", "external_web_access")
    includes = ("web_search_call.action.sources",)
    example = Ran(
        WebSearchCall("search", "tea", ("tea",), "https://example.com/", "tea"),
        ToolResult("", WebSearchResult(("https://example.com/",))),
    )

    def write(self, config: WebSearchConfig) -> Wire:
        one_of(config.search_context_size, _SIZES, "search_context_size")
        domains = list(config.allowed_domains)
        location = config.user_location
        return without_none(
            filters={"allowed_domains": domains} if domains else None,
            search_context_size=config.search_context_size,
            user_location={"type": "approximate", **location} if location else None,
            external_web_access=config.external_web_access,
        )

    def read(self, item: Wire, scene: Scene, config: object) -> Reading:
        _ = scene, config
        action = as_object(item.get("action") or {}, "action")
        queries = texts_in(action, "queries")
        query = text_in(action, "query") or next(iter(queries), "")
        params = WebSearchCall(
            action=text_in(action, "type") or "search",
            query=query,
            queries=queries or ((query,) if query else ()),
            url=text_in(action, "url"),
            pattern=text_in(action, "pattern"),
        )
        sources = tuple(text_in(one, "url") for one in objects_in(action.get("sources"), "sources"))
        value = WebSearchResult(sources or ((params.url,) if params.url else ()))
        return Ran(params, failure(item) or ToolResult.ok(value))


CAPABILITY = WebSearch()


class OpenAIWebSearchSection(NativeSection[WebSearchConfig]):
    """Lets the model search the web."""

    capability = CAPABILITY

    def __init__(self, *, default_params: WebSearchConfig | None = None) -> None:
        super().__init__(
            title="Web search",
            key="openai_web_search",
            default_params=default_params or WebSearchConfig(),
            accepts_overrides=False,
        )
