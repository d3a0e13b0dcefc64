"""Runs the conformance tests on SqliteStore."""

from __future__ import annotations

import pytest

from antwort.storage import open_store
from antwort.testing.store import StoreConformance


@pytest.mark.anyio
class TestSqliteStore(StoreConformance):
    async def open(self, directory):
        return await open_store(f"sqlite:///{directory / 'antwort.db'}", directory / "blobs")
