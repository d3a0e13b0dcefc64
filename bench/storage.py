"""How long a response takes to be stored: begun and finished, each durable before the next step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from readings import Row, Suite, timed

from antwort.api.responses import Response
from antwort.engine.stores import Owner, Store, StoredResponse
from antwort.storage import open_store

RESPONSES = 640
WRITERS = 64
OWNER = Owner("tenant", "key")


def suite() -> Suite:
    """Alone each response waits for the disk twice; together they share the waits."""
    alone = timed(stored_by(1), times=5).over(RESPONSES)
    together = timed(stored_by(WRITERS), times=5).over(RESPONSES)
    return Suite(
        [
            Row("a response stored, one at a time", alone),
            Row(f"a response stored, {WRITERS} at a time", together),
            Row("shared commits: the second per the first", together.per(alone), target=0.5),
        ],
        [f"{1 / alone.p50:,.0f} responses per second alone, {1 / together.p50:,.0f} with {WRITERS} writers"],
    )


def stored_by(writers: int) -> Callable[[], None]:
    """A new store each time, with so many who write at once."""

    async def write(store: Store, writer: int) -> None:
        for number in range(RESPONSES // writers):
            stored = response(f"resp_{writer}_{number}")
            await store.begin_response(OWNER, stored)
            stored.response.status, stored.response.output = "completed", [item("out")]
            await store.finish_response(OWNER, stored.response)

    async def run() -> None:
        with TemporaryDirectory() as folder:
            store = await open_store(f"sqlite:///{folder}/antwort.db", Path(folder) / "blobs")
            await asyncio.gather(*(write(store, writer) for writer in range(writers)))
            await store.aclose()

    return lambda: asyncio.run(run())


def response(identifier: str) -> StoredResponse:
    """One that has begun, with a short question."""
    return StoredResponse(response=Response(id=identifier, created_at=1, model="m"), input=[item("in")])


def item(identifier: str) -> dict[str, object]:
    """A message of a few lines."""
    return {"id": identifier, "type": "message", "role": "user", "content": [{"type": "input_text", "text": "x" * 500}]}
