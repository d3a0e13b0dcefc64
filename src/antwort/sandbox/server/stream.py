"""Live output as server-sent events: `output` while the code runs, then one `result` (or `error`)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import StreamingResponse

from antwort.sandbox.errors import SandboxError

from .sessions import Sessions, report

_PING_SECONDS: Final = 15.0


def events(sessions: Sessions, name: str, code: str, *, seconds: float, echo: bool) -> StreamingResponse:
    """Run the code and send what it prints as it prints it."""
    return StreamingResponse(
        _events(sessions, name, code, seconds=seconds, echo=echo),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _events(sessions: Sessions, name: str, code: str, *, seconds: float, echo: bool) -> AsyncIterator[str]:
    waiting: asyncio.Queue[tuple[str, Any] | None] = asyncio.Queue()

    async def work() -> None:
        try:
            with sessions.using(name) as session:
                outcome = await session.container.execute(
                    code,
                    timeout=seconds,
                    echo=echo,
                    on_output=lambda stream, text: waiting.put_nowait(("output", {"stream": stream, "text": text})),
                )
            waiting.put_nowait(("result", report(outcome)))
        except SandboxError as error:
            waiting.put_nowait(("error", {"error": str(error)}))
        finally:
            waiting.put_nowait(None)

    task = asyncio.create_task(work())
    try:
        while True:
            try:
                event = await asyncio.wait_for(waiting.get(), _PING_SECONDS)
            except TimeoutError:
                yield ": still running\n\n"
                continue
            if event is None:
                return
            # JSON has no line breaks outside strings and escapes those inside: output cannot forge a frame.
            yield f"event: {event[0]}\ndata: {json.dumps(event[1])}\n\n"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def disconnected(request: Request) -> None:
    """Returns when the client has gone away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
