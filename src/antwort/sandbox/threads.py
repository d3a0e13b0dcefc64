"""Thread pool for slow disk work, separate from asyncio's default executor, which it would fill."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class DedicatedThreads:
    """A thread pool of its own."""

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def run(self, work: Callable[[], T]) -> T:
        """Run the work to its end, also if the caller is cancelled: later work may rely on that."""
        task = asyncio.get_running_loop().run_in_executor(self._pool, work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            raise

    def close(self) -> None:
        self._pool.shutdown()
