"""Fixtures for all storage tests: blocking the event loop fails the test."""

from __future__ import annotations

import pytest
from blockbuster import blockbuster_ctx


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(autouse=True)
def _fail_on_blocking_calls():
    with blockbuster_ctx("antwort"):
        yield
