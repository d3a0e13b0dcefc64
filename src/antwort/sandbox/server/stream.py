"""Live output as server-sent events: `output` while the code runs, then one `result` (or `error`)."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import StreamingResponse

from antwort.sandbox.container.capture import StreamName
from antwort.sandbox.errors import SandboxError

from .sessions import Order, Sessions

_logger = logging.getLogger(__name__)

_PING_SECONDS: Final = 15.0

BROKEN: Final = "the sandbox server itself failed; see its log"


def events(sessions: Sessions, name: str, order: Order) -> StreamingResponse:
    """Run the code and send what it prints as it prints it."""
    return StreamingResponse(
        _events(sessions, name, order),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _events(sessions: Sessions, name: str, order: Order) -> AsyncIterator[str]:
    waiting = _Waiting()

    async def work() -> None:
        try:
            with sessions.using(name) as session:
                reply = await sessions.execute(session, order, waiting.output)
            waiting.put("result", reply.report())
        except SandboxError as error:
            waiting.put("error", {"error": str(error)})
        except Exception:  # too late for a status of 500
            _logger.exception("a streamed call failed")
            waiting.put("error", {"error": BROKEN})
        finally:
            waiting.put("", None)

    task = asyncio.create_task(work())
    try:
        while True:
            try:
                kind, value = await asyncio.wait_for(waiting.get(), _PING_SECONDS)
            except TimeoutError:
                yield ": still running\n\n"
                continue
            if not kind:
                return
            # JSON has no line breaks outside strings and escapes those inside: output cannot forge a frame.
            yield f"event: {kind}\ndata: {json.dumps(value)}\n\n"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class _Waiting:
    """Events not yet sent. Output that waits is joined, since code can print byte by byte to whom never reads."""

    def __init__(self) -> None:
        self._events: deque[tuple[str, Any]] = deque()
        self._stream: StreamName | None = None
        self._texts: list[str] = []
        self._news = asyncio.Event()

    def output(self, stream: StreamName, text: str) -> None:
        if stream != self._stream:
            self._join()
            self._stream = stream
        self._texts.append(text)
        self._news.set()

    def put(self, kind: str, value: object) -> None:
        self._join()
        self._events.append((kind, value))
        self._news.set()

    async def get(self) -> tuple[str, Any]:
        await self._news.wait()
        if not self._events:
            self._join()
        event = self._events.popleft()
        if not self._events and not self._texts:
            self._news.clear()
        return event

    def _join(self) -> None:
        if self._texts:
            self._events.append(("output", {"stream": self._stream, "text": "".join(self._texts)}))
            self._texts = []


async def disconnected(request: Request) -> None:
    """Returns when the client has gone away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
