"""Admission: so many at once, so many waiting in order, and a clear no to the rest."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator

from antwort.sandbox.errors import AtCapacity


class Gate:
    """Places, handed out first come first served."""

    def __init__(self, places: int, what: str, *, queue: int = 0, seconds: float = 0.0) -> None:
        self._places = places
        self._what = what
        self._queue = queue
        self._seconds = seconds
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.taken = 0

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncGenerator[None]:
        await self.enter()
        try:
            yield
        finally:
            self.leave()

    async def enter(self) -> None:
        if self.taken < self._places and not self._waiting:
            self.taken += 1
            return
        if len(self._waiting) >= self._queue:
            raise self._full()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await asyncio.wait_for(turn, self._seconds)
        except (TimeoutError, asyncio.CancelledError) as error:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif turn.done() and not turn.cancelled():
                self.leave()  # the place came in the very moment we gave up
            if isinstance(error, TimeoutError):
                raise self._full() from error
            raise

    def leave(self) -> None:
        """Give the place to whoever has waited longest, or back."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.taken -= 1

    def _full(self) -> AtCapacity:
        return AtCapacity(f"at capacity ({self.taken + 1}/{self._places} {self._what})")
