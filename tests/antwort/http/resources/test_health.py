from __future__ import annotations

import pytest
from fixtures_in_process_server import locked_database

from antwort.http.services import WriteProbe

pytestmark = pytest.mark.anyio


async def test_readyz_is_503_while_the_store_is_not_writable(server, tmp_path):
    server.services.write_probe.interval = 0
    async with locked_database(tmp_path):
        while_locked = await server.http.get("/readyz")
        liveness = await server.http.get("/healthz")
    afterwards = await server.http.get("/readyz")

    assert (while_locked.status_code, liveness.status_code, afterwards.status_code) == (503, 200, 200)
    assert afterwards.json() == {"status": "ready"}


async def test_the_write_probe_writes_once_per_interval(server):
    probe, writes = WriteProbe(interval=3600), []

    async def write() -> None:
        writes.append(1)
        await server.services.store.try_to_write()

    for _ in range(3):
        await probe.check(write)

    assert writes == [1]
