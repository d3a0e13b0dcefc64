"""A take-over that keeps the runs of resumed responses instead of launching them."""

from __future__ import annotations

import asyncio

from antwort.engine.background import Background
from antwort.engine.driver import ResponseRun
from antwort.engine.engine import Engine
from antwort.engine.replicas.takeover import Takeover


class Recovery(Takeover):
    """A `Takeover` for tests of one process."""

    def __init__(self, engine: Engine) -> None:
        self.runs: list[ResponseRun] = []
        super().__init__(engine, Background(engine.store), self._keep)

    async def _keep(self, run: ResponseRun) -> None:
        self.runs.append(run)

    async def recovered(self) -> list[ResponseRun]:
        """Recover everything; the runs of this call."""
        self.runs = []
        await self.recover()
        return self.runs

    async def step(self) -> list[ResponseRun]:
        """What happens each second, to its end; the runs of this call."""
        self.runs = []
        await self.take_over_more()
        while self._tasks:
            await asyncio.wait(self._tasks.values())
        return self.runs


async def recovered(engine: Engine) -> list[ResponseRun]:
    """The runs of everything that was unfinished."""
    return await Recovery(engine).recovered()
