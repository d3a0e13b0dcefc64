"""Fixtures of these tests: an event loop on which blocking calls fail, a fake search engine and a fake web site."""

from __future__ import annotations

import pytest
from blockbuster import blockbuster_ctx
from fake_search_api import fake_search_api
from fake_web_site import fake_web_site


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(autouse=True)
def nothing_blocks_the_loop():
    with blockbuster_ctx("antwort.tools"):
        yield


@pytest.fixture
def api():
    with fake_search_api([]) as running:
        yield running


@pytest.fixture(scope="session")
def site():
    with fake_web_site() as running:
        yield running
