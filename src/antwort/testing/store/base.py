"""Base of the conformance tests: the fixture that opens a store, the owners, and test data."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antwort.engine.stores import Owner, Store

OWNER = Owner("tenant-a", "key-1")
OTHER_KEY = Owner("tenant-a", "key-2")
OTHER_TENANT = Owner("tenant-b", "key-3")


class Conformance:
    """Opens and closes a store in each test."""

    async def open(self, directory: Path) -> Store:
        """Open the store in a directory: empty if the directory is new."""
        raise NotImplementedError("define open(directory) so that it returns an open Store")

    @asynccontextmanager
    async def opened_store(self, directory: Path) -> AsyncGenerator[Store]:
        """Context manager: the open store."""
        store = await self.open(directory)
        try:
            yield store
        finally:
            await store.aclose()

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncGenerator[Store]:
        """Fixture: the open store of one test."""
        async with self.opened_store(tmp_path) as store:
            yield store


def message(identifier: str, text: str = "…") -> dict[str, Any]:
    """A message item with unknown fields."""
    content = [{"type": "input_text", "text": text, "x-unknown": {"deep": [1, None, 2.5]}}]
    return {"id": identifier, "type": "message", "role": "user", "content": content}


async def chunks(*pieces: bytes) -> AsyncIterator[bytes]:
    """File content, in chunks."""
    for piece in pieces:
        yield piece
