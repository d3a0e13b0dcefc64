"""Fixtures for all HTTP tests: blocking the event loop fails the test, also while logging an error."""

from __future__ import annotations

import pytest
import structlog
from blockbuster import blockbuster_ctx
from fixtures_in_process_server import run_in_process_server

from antwort.telemetry import redact_exception


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(autouse=True)
def _log_as_the_server_does():
    structlog.configure(processors=[redact_exception, structlog.processors.JSONRenderer()])
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def _fail_on_blocking_calls():
    with blockbuster_ctx("antwort.http"):
        yield


@pytest.fixture
async def server(tmp_path):
    async with run_in_process_server(tmp_path) as running:
        yield running
