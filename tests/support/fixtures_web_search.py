"""Fixtures for the web search: the real server with a fake search engine and a fake web site, and a scripted model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fake_search_api import KEY, FakeSearchApi, Found, fake_search_api
from fake_web_site import FakeWebSite, fake_web_site
from fixtures_server import Server, run_server

SEARCH = {"type": "web_search"}
SOURCES = ["web_search_call.action.sources"]
RESULTS = ["web_search_call.results"]


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"call": {"name": name, "arguments": arguments}}


def search(*queries: str) -> dict[str, Any]:
    return call("web_search", queries=list(queries))


def _when(text: str, turn: int, *reply: dict[str, Any]) -> dict[str, Any]:
    return {"when": {"text": text, "turn": turn}, "reply": list(reply)}


def script(site: str) -> dict[str, Any]:
    """A user's text that begins with `search`, `open` or `find` is a call; then the model repeats what it read."""
    return {
        "fragment": 5,
        "answers": [
            _when("tea and cite", 1, search("tea")),
            _when("tea and cite", 2, {"text": CITING.replace("SITE", site)}),
            _when("research", 1, search("oolong", "sencha")),
            _when("research", 2, {"text": "Let me read."}, call("open_page", url=f"{site}/tea")),
            _when("research", 3, call("find_in_page", url="[1]", pattern="sencha  COSTS")),
            _when("research", 4, {"text": "<<output>>"}),
            _when("both", 1, search("tea"), {"call": {"name": "add", "arguments": {"n": 1}}}),
            _when("killed", 1, search("tea")),
            _when("killed", 2, {"text": "Let me read."}, call("open_page", url=f"{site}/silent"), search("oolong")),
            _when("killed", 3, {"text": "Oolong costs 12 € [1]. <<output>>"}),
            _when("again and again", 1, search("tea"), search("oolong"), search("sencha")),
            _when("again and again", 2, {"text": "Enough: <<output>>"}),
            _when("broken", 1, {"call": {"name": "web_search", "arguments": '{"queries": ["te'}}),
            {
                "when": {"text": "again", "turn": 1},
                "reply": [{"text": "As before: [1], [2] and [9]; <<find /\\[\\d\\] .*/>>"}],
            },
            {"when": {"text": "/^search /", "turn": 1}, "reply": [search("<<text>>")]},
            {"when": {"text": "/^open /", "turn": 1}, "reply": [call("open_page", url="<<find /(?<=open )\\S+/>>")]},
            {"when": {"turn": 2}, "reply": [{"text": "I read: <<output>>"}]},
            {"reply": [{"text": "No tool was used."}]},
        ],
    }


CITING = (
    "Grüße 🍵! Oolong costs 12 €[1], as [Tea prices](SITE/tea) says; `[1]` is code, "
    "[7] and (https://x.example/) are not."
)


def documents(site: str) -> list[Found]:
    """Pages that the fake engine finds: one of the fake site, and two that do not exist."""
    return [
        Found(f"{site}/tea", "Tea prices", "Oolong and sencha: what tea costs."),
        Found("https://tea.example/green", "Green tea", "Sencha is a green tea from Japan."),
        Found("https://www.tea.example/black#top", "Black tea", "Assam is a black tea."),
        Found("javascript:alert(1)", "Bad tea", "Tea."),
    ]


class WebSearchEnv:
    """A server, the search engine and the web site behind it."""

    def __init__(self, server: Server, api: FakeSearchApi, site: FakeWebSite) -> None:
        self.server = server
        self.api = api
        self.site = site


@contextmanager
def web_search_server(
    directory: Path, *, code_interpreter: bool = True, fetch: dict[str, Any] | None = None, **config: Any
) -> Iterator[WebSearchEnv]:
    """A server that searches with a fake SearXNG, and may fetch from loopback."""
    with fake_web_site() as site, fake_search_api([]) as api:
        api.documents = documents(site.url)
        settings = {
            "providers": {
                "code_interpreter": {"enabled": code_interpreter},
                "web_search": {"engine": "searxng", "url": api.url, "api_key_env": "SEARCH_KEY", "timeout": 3},
            },
            "fetch": {"allow_networks": ["127.0.0.1/32"], "ports": [site.port], "timeout": 3, **(fetch or {})},
            **config,
        }
        (directory / "scratch").mkdir(parents=True)
        environment = {"SEARCH_KEY": KEY, "TMPDIR": str(directory / "scratch")}
        with run_server(directory, settings, environment=environment, script=script(site.url)) as server:
            yield WebSearchEnv(server, api, site)
