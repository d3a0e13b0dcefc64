"""What holds for every test of a store."""

from __future__ import annotations

import pytest
from blockbuster import blockbuster_ctx


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(autouse=True)
def _nothing_blocks_the_loop():
    with blockbuster_ctx("antwort"):
        yield
