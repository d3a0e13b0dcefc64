"""Awaiting work until the client disconnects."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from antwort.net.disconnect import run_until_disconnect

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def wait_forever() -> Any:
    await asyncio.Event().wait()


async def disconnect():
    return {"type": "http.disconnect"}


async def test_the_result_of_the_work_is_returned():
    async def work():
        return 3

    assert await run_until_disconnect(wait_forever, work()) == 3


async def test_a_disconnect_cancels_the_work_and_waits_for_it():
    ended = asyncio.Event()

    async def work():
        try:
            await wait_forever()
        finally:
            await asyncio.sleep(0.01)
            ended.set()

    with pytest.raises(ClientDisconnect):
        await run_until_disconnect(disconnect, work())
    assert ended.is_set()


async def test_an_error_of_the_work_is_raised():
    async def work():
        raise ValueError("of the work")

    with pytest.raises(ValueError, match="of the work"):
        await run_until_disconnect(wait_forever, work())


async def test_on_idle_is_called_at_each_interval():
    calls = []

    async def on_idle():
        calls.append(1)

    await run_until_disconnect(wait_forever, asyncio.sleep(0.2), idle_interval=0.02, on_idle=on_idle)
    assert len(calls) >= 2
