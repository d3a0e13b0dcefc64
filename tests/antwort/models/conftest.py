"""What holds for every test of a model: nothing blocks the loop, and there is an upstream to ask."""

from __future__ import annotations

import socket

import pytest
from blockbuster import blockbuster_ctx
from fake_upstream import upstreaming


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(autouse=True)
def nothing_blocks_the_loop():
    with blockbuster_ctx("antwort.models"):
        yield


@pytest.fixture(scope="session")
def _loopback():
    with upstreaming() as upstream:
        yield upstream


@pytest.fixture
def upstream(_loopback):
    _loopback.forget()
    return _loopback


@pytest.fixture
def unused_port():
    """A port that nobody listens on; bound, so that nobody else begins to."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]
