"""Fixtures of the model tests: blocking calls fail the test; a fake upstream."""

from __future__ import annotations

import socket

import pytest
from blockbuster import blockbuster_ctx
from fake_upstream import running_upstream

from antwort.models.instrumentation import Instrumentation
from antwort.telemetry import Metrics


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(autouse=True)
def fail_on_blocking_calls():
    with blockbuster_ctx("antwort.models"):
        yield


@pytest.fixture(scope="session")
def _fake_upstream():
    with running_upstream() as upstream:
        yield upstream


@pytest.fixture
def upstream(_fake_upstream):
    _fake_upstream.reset()
    return _fake_upstream


@pytest.fixture
def unused_port():
    """A port without a listener; bound, so that no other process can take it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture
def instrumentation():
    return Instrumentation(Metrics(), name="test", kind="test")
