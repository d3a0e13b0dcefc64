"""Live output of a call as server-sent events: `output` while the code runs, then one `result` or `error`."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.responses import StreamingResponse

from antwort.net.errors import NetError
from antwort.net.sse import KEEP_ALIVE, encode_frame
from antwort.sandbox.container.capture import StreamName
from antwort.sandbox.errors import SandboxServerError

from .sessions import SessionCommandRequest, SessionExecRequest, Sessions

_logger = logging.getLogger(__name__)

_KEEP_ALIVE_SECONDS: Final = 15.0

INTERNAL_ERROR: Final = "the sandbox server itself failed; see its log"


def stream_execution(
    sessions: Sessions, session_id: str, exec_request: SessionExecRequest | SessionCommandRequest
) -> StreamingResponse:
    """Run the code or the command, and send its output while it runs."""
    return StreamingResponse(
        _frames(sessions, session_id, exec_request),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _frames(
    sessions: Sessions, session_id: str, exec_request: SessionExecRequest | SessionCommandRequest
) -> AsyncIterator[bytes]:
    queue = _EventQueue()

    async def work() -> None:
        try:
            with sessions.using(session_id) as session:
                reply = await sessions.execute(session, exec_request, queue.add_output)
            queue.put("result", reply.report())
        except (SandboxServerError, NetError) as error:
            queue.put("error", {"error": str(error)})
        except Exception:  # the status of the response has been sent: a 500 is not possible
            _logger.exception("a streamed call failed")
            queue.put("error", {"error": INTERNAL_ERROR})
        finally:
            queue.put("", None)

    task = asyncio.create_task(work())
    try:
        while True:
            try:
                name, value = await asyncio.wait_for(queue.get(), _KEEP_ALIVE_SECONDS)
            except TimeoutError:
                yield KEEP_ALIVE
                continue
            if not name:
                return
            yield encode_frame(name, json.dumps(value).encode())
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class _EventQueue:
    """Events that have not been sent. Queued output is joined, because code may print byte by byte."""

    def __init__(self) -> None:
        self._events: deque[tuple[str, Any]] = deque()
        self._stream: StreamName | None = None
        self._texts: list[str] = []
        self._not_empty = asyncio.Event()

    def add_output(self, stream: StreamName, text: str) -> None:
        if stream != self._stream:
            self._join_output()
            self._stream = stream
        self._texts.append(text)
        self._not_empty.set()

    def put(self, name: str, value: object) -> None:
        self._join_output()
        self._events.append((name, value))
        self._not_empty.set()

    async def get(self) -> tuple[str, Any]:
        await self._not_empty.wait()
        if not self._events:
            self._join_output()
        event = self._events.popleft()
        if not self._events and not self._texts:
            self._not_empty.clear()
        return event

    def _join_output(self) -> None:
        if self._texts:
            self._events.append(("output", {"stream": self._stream, "text": "".join(self._texts)}))
            self._texts = []
