from __future__ import annotations

import pytest

from antwort.config import ConfigError, WebSearchSettings
from antwort.tools.builtins.websearch.engines import (
    BraveEngine,
    ExaEngine,
    LocalEngine,
    SearxngEngine,
    TavilyEngine,
    open_engine,
)

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "settings, kind",
    [
        ({"engine": "searxng", "url": "http://127.0.0.1:8888"}, SearxngEngine),
        ({"engine": "brave", "api_key_env": "KEY"}, BraveEngine),
        ({"engine": "tavily", "api_key_env": "KEY"}, TavilyEngine),
        ({"engine": "exa", "api_key_env": "KEY"}, ExaEngine),
        ({"engine": "local", "folder": "."}, LocalEngine),
    ],
)
async def test_each_engine_is_opened(settings, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    engine = await open_engine(WebSearchSettings(**settings), tmp_path / "state", {"KEY": "k"}, None)

    assert type(engine) is kind
    await engine.aclose()


@pytest.mark.parametrize(
    "settings, environment, message",
    [
        ({"engine": "brave", "api_key_env": "KEY"}, {}, "the variable KEY is not set"),
        ({"engine": "brave", "api_key_env": "KEY"}, {"KEY": " "}, "the variable KEY is not set"),
        ({"engine": "brave", "api_key_env": "KEY"}, {"KEY": "a\nb: c"}, "the value of KEY is not a key"),
        ({"engine": "local", "folder": "missing"}, {}, "missing is not a directory"),
        ({}, {}, "no search engine is configured"),
    ],
)
async def test_an_impossible_configuration_is_an_error(settings, environment, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        await open_engine(WebSearchSettings(**settings), tmp_path / "state", environment, None)
