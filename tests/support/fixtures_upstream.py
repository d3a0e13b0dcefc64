"""Fixtures for tests that need an upstream model server on loopback, or a closed port."""

from __future__ import annotations

import socket

import pytest
from fake_upstream import running_upstream


@pytest.fixture(scope="session")
def upstream_server():
    with running_upstream() as upstream:
        yield upstream


@pytest.fixture
def upstream(upstream_server):
    upstream_server.reset()
    return upstream_server


@pytest.fixture
def unused_port():
    """A port without a listener; bound, so that it stays closed."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]
