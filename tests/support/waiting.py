"""Waiting for what happens elsewhere, in another thread, another process or the kernel; never for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

SECONDS = 30


def until(happened: Callable[[], object]) -> None:
    """Return when it has happened; fail when it does not."""
    deadline = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


async def soon(happened: Callable[[], object]) -> None:
    """The same, while the event loop goes on."""
    deadline = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.02)
