from __future__ import annotations

import pytest

from weakincentives.adapters.openai import OpenAIWebSearchSection, WebSearchConfig
from weakincentives.adapters.openai.native_tools import WebSearchCall, WebSearchResult
from weakincentives.adapters.openai.native_tools.capability import ProviderRan, ResponseContext, ToolConfigError
from weakincentives.adapters.openai.native_tools.web_search_section import CAPABILITY


def read(**item) -> ProviderRan:
    reading = CAPABILITY.parse_call({"id": "ws_1", "type": "web_search_call", **item}, ResponseContext(), None)
    assert isinstance(reading, ProviderRan)
    return reading


def test_default_declaration_has_no_fields():
    assert CAPABILITY.declare(None) == {"type": "web_search"}
    (declared,) = OpenAIWebSearchSection().native_tools()
    assert (declared.capability, declared.provider) == ("web_search", "openai")


def test_config_fields_are_declared():
    config = WebSearchConfig(("a.example",), "low", {"city": "Kyiv"}, external_web_access=False)

    assert CAPABILITY.declare(config) == {
        "type": "web_search",
        "filters": {"allowed_domains": ["a.example"]},
        "search_context_size": "low",
        "user_location": {"type": "approximate", "city": "Kyiv"},
        "external_web_access": False,
    }


@pytest.mark.parametrize(
    "config, expected",
    [
        (
            WebSearchConfig(search_context_size="huge"),
            "search_context_size must be one of low, medium, high, not 'huge'",
        ),
        (WebSearchConfig(allowed_domains="a.example"), "allowed_domains must be a tuple"),  # pyright: ignore[reportArgumentType] - the point
    ],
)
def test_invalid_config_is_refused(config, expected):
    with pytest.raises(ToolConfigError, match=expected):
        CAPABILITY.declare(config)


@pytest.mark.parametrize(
    "action, call, sources",
    [
        (
            {"type": "search", "query": "tea", "sources": [{"type": "url", "url": "https://a/"}]},
            WebSearchCall("search", "tea", ("tea",)),
            ("https://a/",),
        ),
        ({"type": "search", "queries": ["a", "b"]}, WebSearchCall("search", "a", ("a", "b")), ()),
        ({"type": "open_page", "url": "https://a/"}, WebSearchCall("open_page", url="https://a/"), ("https://a/",)),
        (
            {"type": "find_in_page", "url": "https://a/", "pattern": "tea"},
            WebSearchCall("find_in_page", url="https://a/", pattern="tea"),
            ("https://a/",),
        ),
        (None, WebSearchCall(), ()),
    ],
)
def test_all_actions_are_parsed(action, call, sources):
    ran = read(status="completed", action=action)

    assert (ran.params, ran.result.value) == (call, WebSearchResult(sources))
    assert ran.result.render() == ("\n".join(sources) or "(no sources)")


def test_failure_has_no_value():
    ran = read(status="failed", action={"type": "search", "query": "tea"})

    assert (ran.result.success, ran.result.value) == (False, None)
    assert ran.result.message == "web_search_call failed (failed): no reason given"
