from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fixtures_postgres import postgres_server, schema_url  # noqa: F401 - a fixture

from antwort.engine.stores import Store
from antwort.storage import open_store
from antwort.testing.store import ReplicaConformance, StoreConformance

pytestmark = pytest.mark.anyio


class TestPostgresStore(StoreConformance, ReplicaConformance):
    """The conformance suite, on a schema of its own for each test."""

    @pytest.fixture(autouse=True)
    def _server(self, postgres_server):  # noqa: F811 - a fixture
        self.server = postgres_server

    async def open(self, directory: Path) -> Store:
        url = await asyncio.to_thread(schema_url, self.server, directory)
        return await open_store(url, directory / "blobs")
