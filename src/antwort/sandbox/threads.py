"""Threads of one's own, for work on the host's disk that takes long: in the shared ones it would hold up everybody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class DedicatedThreads:
    """A few threads."""

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def run(self, work: Callable[[], T]) -> T:
        """Do the work to its end, also if nobody waits for it any more: whatever comes next may rely on that."""
        task = asyncio.get_running_loop().run_in_executor(self._pool, work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            raise

    def close(self) -> None:
        self._pool.shutdown()
