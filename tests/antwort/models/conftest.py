"""Fixtures of the model tests: blocking calls on the event loop fail; a fake upstream; instrumentation."""

from __future__ import annotations

import pytest
from blockbuster import blockbuster_ctx
from fixtures_upstream import unused_port, upstream, upstream_server

from antwort.models.instrumentation import Instrumentation
from antwort.telemetry import Metrics

__all__ = ["unused_port", "upstream", "upstream_server"]


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(autouse=True)
def fail_on_blocking_calls():
    with blockbuster_ctx("antwort.models"):
        yield


@pytest.fixture
def instrumentation():
    return Instrumentation(Metrics(), name="test", kind="test")
