from __future__ import annotations

import pytest
from fixtures_in_process_server import locked

from antwort.http.services import Trial

pytestmark = pytest.mark.anyio


async def test_a_server_that_cannot_write_is_not_ready(stage, tmp_path):
    stage.services.trial.every = 0
    async with locked(tmp_path):
        while_locked = await stage.http.get("/readyz")
        alive = await stage.http.get("/healthz")
    afterwards = await stage.http.get("/readyz")

    assert (while_locked.status_code, alive.status_code, afterwards.status_code) == (503, 200, 200)
    assert afterwards.json() == {"status": "ready"}


async def test_however_many_ask_the_store_is_tried_now_and_then(stage):
    trial, tried = Trial(every=3600), []

    async def write() -> None:
        tried.append(1)
        await stage.services.store.check_writable()

    for _ in range(3):
        await trial.of(write)

    assert tried == [1]
