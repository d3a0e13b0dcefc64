"""Polling with a timeout for a condition in another thread, another process or the kernel."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

TIMEOUT = 30.0
INTERVAL = 0.02


def wait_until(condition: Callable[[], Any], timeout: float = TIMEOUT, interval: float = INTERVAL) -> Any:
    """Poll until the condition is true; returns its value, fails after the timeout."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(interval)
    return value


async def wait_until_async(condition: Callable[[], object]) -> None:
    """The same without blocking the event loop."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        await asyncio.sleep(INTERVAL)
