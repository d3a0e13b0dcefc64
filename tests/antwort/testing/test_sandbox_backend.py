from __future__ import annotations

import pytest
from fixtures_sandbox_server import sandbox_server

from antwort.containers.sandboxes.local import LocalSandboxes
from antwort.containers.sandboxes.remote import RemoteSandboxes
from antwort.testing.sandbox_backend import SandboxesConformance


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module", params=["local", "remote"])
async def sandboxes(request, tmp_path_factory):
    place = tmp_path_factory.mktemp(request.param)
    if request.param == "local":
        local = LocalSandboxes(place, max_output=1 << 20)
        yield local
        await local.aclose()
        return
    with sandbox_server(place) as running:
        remote = RemoteSandboxes(running.url, token=running.token)
        yield remote
        await remote.aclose()


@pytest.mark.anyio
class TestEveryPlace(SandboxesConformance):
    pass
