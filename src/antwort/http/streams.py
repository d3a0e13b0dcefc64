"""Streaming responses with back-pressure: server-sent events with keep-alive comments, and file downloads.

Nothing is produced before the previous part has been sent. When the client disconnects, or reads nothing for the stall
time-out, the work behind the stream is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Generic, Protocol, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from antwort.api.errors import ApiError
from antwort.api.events import ErrorEvent, to_sse
from antwort.http.errors import to_api_error
from antwort.net.disconnect import run_until_disconnect
from antwort.net.sse import KEEP_ALIVE

T = TypeVar("T")

_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # a proxy that buffers events would defeat the stream
}


def error_event(error: ApiError) -> Iterable[bytes]:
    """One `error` event. It has no sequence number: a client that resumes continues after the last numbered event."""
    yield to_sse(ErrorEvent(error=error.envelope().error))


class EventStream(Response, Generic[T]):
    """Sends each event as the SSE frames that `encode` makes of it, if any.

    `on_close` is called once: before the end of the body, so that the next request of the client finds limits released,
    or when the stream breaks. After an exception the last frames are those that `error_frames` makes of it.

    Frames of events that `is_held` are sent together with the next one, or when a keep-alive is due. Until then nothing
    was sent, so an exception is an error response with its status.
    """

    def __init__(
        self,
        events: AsyncGenerator[T, None],
        *,
        encode: Callable[[T], bytes],
        keep_alive: float,
        stall_timeout: float,
        on_close: Callable[[], None] = lambda: None,
        error_frames: Callable[[ApiError], Iterable[bytes]] = error_event,
        is_held: Callable[[T], bool] | None = None,
        keep_alive_frame: bytes = KEEP_ALIVE,
    ) -> None:
        super().__init__(status_code=200, headers=_HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._encode = encode
        self._keep_alive = keep_alive
        self._stall_timeout = stall_timeout
        self._on_close = on_close
        self._error_frames = error_frames
        self._is_held = is_held
        self._keep_alive_frame = keep_alive_frame
        self._held: bytes | None = b""
        """The frames that are held; None when the response begins."""
        self._begin_lock = asyncio.Lock()
        self._has_begun = False
        self._is_sending = False
        self._is_idle = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all frames, unless the client disconnects."""
        del scope
        try:
            await run_until_disconnect(
                receive,
                self._send_all(send),
                idle_interval=self._keep_alive,
                on_idle=lambda: self._send_keep_alive(send),
            )
        finally:
            self._close()

    def _close(self) -> None:
        close, self._on_close = self._on_close, lambda: None
        close()

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            if self._is_held is None:
                await self._begin(send)
            try:
                async for event in events:
                    is_held = self._is_held is not None and self._is_held(event)
                    await self._send_or_hold(send, self._encode(event), is_held=is_held)
            except (ClientDisconnect, OSError):
                raise
            except Exception as error:
                if self._held is not None:
                    raise
                await self._begin(send)
                for frame in self._error_frames(to_api_error(error)):  # the status has been sent
                    await self._send(send, frame)
        await self._begin(send)
        self._close()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_or_hold(self, send: Send, frame: bytes, *, is_held: bool) -> None:
        if is_held and self._held is not None:
            self._held += frame
            return
        if frame:
            await self._begin(send)
            await self._send(send, frame)

    async def _begin(self, send: Send) -> None:
        """Send the status, once, and the frames that were held. A keep-alive may do so at the same time."""
        if self._has_begun:
            return
        async with self._begin_lock:
            held, self._held = self._held, None
            if held is None:
                return
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if held:
                await self._send(send, held)
            self._has_begun = True

    async def _send(self, send: Send, frame: bytes) -> None:
        self._is_sending, self._is_idle = True, False
        try:
            async with asyncio.timeout(self._stall_timeout):
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        except TimeoutError as error:
            raise ClientDisconnect from error
        finally:
            self._is_sending = False

    async def _send_keep_alive(self, send: Send) -> None:
        """Send a comment if no frame was sent since the last call and none is waiting for the client."""
        if self._is_idle and not self._is_sending:
            await self._begin(send)
            await send({"type": "http.response.body", "body": self._keep_alive_frame, "more_body": True})
        self._is_idle = True


class ClosableChunks(Protocol):
    """An asynchronous iterator of bytes that has to be closed."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    def aclose(self) -> Awaitable[None]: ...


class ByteStream(Response):
    """Sends a file as a download and closes its source, however the response ends.

    On an error the connection is closed without the end of the response, so that a partial file is not taken for a
    complete one.
    """

    def __init__(
        self, chunks: ClosableChunks, *, name: str, media_type: str, stall_timeout: float, size: int | None = None
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
        self._chunks = chunks
        self._stall_timeout = stall_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all chunks, unless the client disconnects."""
        del scope
        async with aclosing(self._chunks):
            await run_until_disconnect(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        await self._send(send, {"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for chunk in self._chunks:
            await self._send(send, {"type": "http.response.body", "body": chunk, "more_body": True})
        await self._send(send, {"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, message: Message) -> None:
        try:
            async with asyncio.timeout(self._stall_timeout):
                await send(message)
        except TimeoutError as error:
            raise ClientDisconnect from error
