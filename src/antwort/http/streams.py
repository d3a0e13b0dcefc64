"""Events and files out, at the reader's pace: nothing is made until what was before has gone out.

A reader who goes away ends the work behind the stream; one who takes nothing for too long
is taken for gone. While there is nothing to send, comments keep the connection alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import aclosing
from typing import Any, Generic, Protocol, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from antwort.api.errors import ApiError
from antwort.api.events import ErrorEvent, to_sse
from antwort.api.sse import KEEP_ALIVE
from antwort.http.errors import explained

T = TypeVar("T")

_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # a proxy that gathers events would make a stream pointless
}


def broken_off(told: ApiError) -> Iterable[bytes]:
    """Only what went wrong. It has no number: a reader who can come back goes on behind the last that had one."""
    yield to_sse(ErrorEvent(error=told.envelope().error))


class EventStream(Response, Generic[T]):
    """Sends events as they come, each as the SSE frame that `encode` makes of it. `closed` is called at the end.

    Where something goes wrong, the last frames are those that `broken` makes of it.
    """

    def __init__(
        self,
        events: AsyncGenerator[T, None],
        *,
        encode: Callable[[T], bytes],
        keep_alive: float,
        stall_timeout: float,
        closed: Callable[[], None] = lambda: None,
        broken: Callable[[ApiError], Iterable[bytes]] = broken_off,
    ) -> None:
        super().__init__(status_code=200, headers=_HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._encode = encode
        self._keep_alive = keep_alive
        self._stall = stall_timeout
        self._closed = closed
        self._broken = broken
        self._busy = False
        self._quiet = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything, unless the reader goes."""
        del scope
        try:
            await attended(receive, self._send_all(send), idle=self._keep_alive, on_idle=lambda: self._beat(send))
        finally:
            self._closed()

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                async for event in events:
                    await self._send(send, self._encode(event))
            except (ClientDisconnect, OSError):
                raise
            except Exception as error:  # noqa: BLE001 - the status is out: all that can be told goes into the stream
                for frame in self._broken(explained(error)):
                    await self._send(send, frame)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, frame: bytes) -> None:
        self._busy, self._quiet = True, False
        try:
            async with asyncio.timeout(self._stall):
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        except TimeoutError as error:
            raise ClientDisconnect from error
        finally:
            self._busy = False

    async def _beat(self, send: Send) -> None:
        """A sign of life, when there was none and the reader is not behind anyway."""
        if self._quiet and not self._busy:
            await send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})
        self._quiet = True


class Pieces(Protocol):
    """Bytes that come piece by piece, and have to be closed."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    def aclose(self) -> Awaitable[None]: ...


class ByteStream(Response):
    """Sends a file as something to save, at the reader's pace. What feeds it is closed, however it ends.

    One that breaks off ends the connection without an end of the answer, so that nobody takes half for the whole.
    """

    def __init__(
        self, pieces: Pieces, *, name: str, media_type: str, stall_timeout: float, size: int | None = None
    ) -> None:
        headers = {
            "content-type": media_type,
            "content-disposition": f"attachment; filename*=UTF-8''{name}",
            "content-security-policy": "sandbox; default-src 'none'",
            "cache-control": "no-store",
        }
        super().__init__(status_code=200, headers=headers)
        del self.headers["content-length"]
        if size is not None:
            self.headers["content-length"] = str(size)
        self._pieces = pieces
        self._stall = stall_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything, unless the reader goes."""
        del scope
        async with aclosing(self._pieces):
            await attended(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        await self._send(send, {"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for piece in self._pieces:
            await self._send(send, {"type": "http.response.body", "body": piece, "more_body": True})
        await self._send(send, {"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, message: Message) -> None:
        try:
            async with asyncio.timeout(self._stall):
                await send(message)
        except TimeoutError as error:
            raise ClientDisconnect from error


async def _nothing() -> None:
    pass


async def attended(
    receive: Receive,
    work: Coroutine[Any, Any, T],
    *,
    idle: float = 3600.0,
    on_idle: Callable[[], Awaitable[None]] = _nothing,
) -> T:
    """Do some work while its caller is there; `ClientDisconnect` when the caller goes, and the work has stopped."""
    worker = asyncio.create_task(work)
    watcher = asyncio.create_task(_watch(receive, idle, on_idle))
    try:
        await asyncio.wait({worker, watcher}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        worker.cancel()
        watcher.cancel()
        await asyncio.gather(worker, watcher, return_exceptions=True)
    if worker.cancelled():
        raise ClientDisconnect
    return worker.result()


async def _watch(receive: Receive, idle: float, on_idle: Callable[[], Awaitable[None]]) -> None:
    """Return when the caller has gone."""
    while True:
        try:
            async with asyncio.timeout(idle):
                message = await receive()
        except TimeoutError:
            await on_idle()
        else:
            if message["type"] == "http.disconnect":
                return
