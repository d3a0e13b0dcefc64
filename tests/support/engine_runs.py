"""Responses on a real engine and store, with a model of scripted pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import asynccontextmanager
from typing import Any

from fake_echo_provider import EchoProvider
from fixtures_sealing import new_sealer

from antwort.api.events import AnyEvent
from antwort.api.requests import CreateResponse
from antwort.api.tools import FileSearchTool, ToolDeclaration
from antwort.engine.driver import ResponseRun
from antwort.engine.engine import Engine
from antwort.engine.ports import CallPiece, ChosenModel, ToolRegistry
from antwort.engine.stores import Owner
from antwort.models.registry import ModelRegistry
from antwort.storage import open_store
from antwort.tools import ToolRegistry as Tools

US = Owner("us", "key")
SEARCH = FileSearchTool(vector_store_ids=["vs_1"])


class FakeModel:
    """A model with scripted replies, one list of pieces for each request; an exception is raised."""

    def __init__(self, *replies: list[Any]) -> None:
        self._replies = list(replies)
        self.requests = 0
        self.stopped = 0

    async def generate(self, request):
        self.requests += 1
        try:
            for piece in self._replies.pop(0):
                if isinstance(piece, BaseException):
                    raise piece
                if piece is WAIT:
                    await asyncio.Event().wait()
                yield piece
        finally:
            self.stopped += 1

    async def count_tokens(self, request) -> int:
        return 1

    async def aclose(self) -> None:
        pass


WAIT = object()


@asynccontextmanager
async def running(
    directory, model: FakeModel, tools: ToolRegistry | None = None, declared: Sequence[ToolDeclaration] = (), **request
):
    """A response that was started with this model."""
    store = await open_store(f"sqlite:///{directory}/antwort.db", directory / "blobs")
    models = ModelRegistry({"m": ChosenModel("m", model, "m")}, default="m", default_for_unknown=False)
    engine = Engine(models, tools or Tools([EchoProvider()]), store, new_sealer())
    try:
        yield await engine.start(US, CreateResponse(input="go", tools=[SEARCH, *declared], **request))
    finally:
        await engine.retries.aclose()
        await store.aclose()


async def events_of(run: ResponseRun) -> list[AnyEvent]:
    return [event async for event in run.events()]


def search(query: str, index: int = 0) -> CallPiece:
    return CallPiece(index, "file_search", f"call_{index}", f'{{"query": "{query}"}}')
