"""What holds for every test of the server's face: nothing blocks the loop, not even to say what went wrong."""

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
def _lines_as_the_server_writes_them():
    structlog.configure(processors=[redact_exception, structlog.processors.JSONRenderer()])
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def _nothing_blocks_the_loop():
    with blockbuster_ctx("antwort.http"):
        yield


@pytest.fixture
async def stage(tmp_path):
    async with run_in_process_server(tmp_path) as running:
        yield running
