from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
from fake_mcp_servers import FakeMcpServer, HostileMcpServer

from antwort.tools.mcp.client import HttpTarget, McpClient, SessionLimits


@pytest.fixture(scope="module")
def crm():
    with FakeMcpServer().running() as server:
        yield server


@pytest.fixture(scope="module")
def hostile():
    with HostileMcpServer().running() as server:
        yield server


@pytest.fixture
def open_client():
    @asynccontextmanager
    async def opened(**limits):
        client = McpClient(SessionLimits(**limits))
        try:
            yield client
        finally:
            await client.aclose()

    return opened


@pytest.fixture
async def client(open_client):
    async with open_client() as opened:
        yield opened


@pytest.fixture
def local():
    """A target on loopback, which targets of requests may be on a server without keys only."""
    return lambda url, *headers: HttpTarget(url=url, headers=headers, allows_loopback=True)
