"""What the tests of containers share: a jail of their own, a store, and a clock that they turn."""

from __future__ import annotations

import pytest
from fixtures_containers import ContainerEnv

from antwort.containers.sandboxes import LocalSandboxes


@pytest.fixture(scope="package")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="package")
async def jail(anyio_backend, tmp_path_factory):
    sandboxes = LocalSandboxes(tmp_path_factory.mktemp("jail"), max_output=1 << 20)
    yield sandboxes
    await sandboxes.aclose()


@pytest.fixture
async def env(jail, tmp_path):
    async with ContainerEnv.opened(jail, tmp_path) as opened:
        yield opened
