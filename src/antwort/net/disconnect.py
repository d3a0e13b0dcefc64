"""Disconnect-aware awaiting: runs a coroutine and cancels it when the HTTP client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

T = TypeVar("T")


async def _do_nothing() -> None:
    pass


async def run_until_disconnect(
    receive: Receive,
    work: Coroutine[Any, Any, T],
    *,
    idle_interval: float = 3600.0,
    on_idle: Callable[[], Awaitable[None]] = _do_nothing,
) -> T:
    """Return the result of `work`. When the client disconnects, cancel it, wait for it and raise `ClientDisconnect`.

    The request body must have been read: `receive` is only watched for the disconnect. `on_idle` is called after each
    `idle_interval` in seconds.
    """
    worker = asyncio.create_task(work)
    watcher = asyncio.create_task(_wait_for_disconnect(receive, idle_interval, on_idle))
    try:
        await asyncio.wait({worker, watcher}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        worker.cancel()
        watcher.cancel()
        await asyncio.gather(worker, watcher, return_exceptions=True)
    if worker.cancelled():
        raise ClientDisconnect
    return worker.result()


async def _wait_for_disconnect(receive: Receive, idle_interval: float, on_idle: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            async with asyncio.timeout(idle_interval):
                message = await receive()
        except TimeoutError:
            await on_idle()
        else:
            if message["type"] == "http.disconnect":
                return
