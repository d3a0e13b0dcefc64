"""Fixtures of these tests: an event loop on which blocking calls fail, and an upstream model server."""

from __future__ import annotations

import pytest
from blockbuster import blockbuster_ctx
from fixtures_upstream import unused_port, upstream, upstream_server

__all__ = ["unused_port", "upstream", "upstream_server"]


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(autouse=True)
def nothing_blocks_the_loop():
    with blockbuster_ctx("antwort.net"):
        yield
