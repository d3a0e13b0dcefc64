"""Connections: none that only waits, so many at once, and always one more for the health check.

Uvicorn gives a client all the time in the world to begin a request and to read an answer, and counts whoever does
neither like one who works. Here a connection without a request ends after a while; when there are too many the one
that has waited longest goes first; and if all of them work, the rest are told so, but for those who ask for the health.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS: Final = 10.0
"""To send a request's head, from the first byte of the connection or the last of the answer before."""
STALLED_SECONDS: Final = 60.0
"""To read on, for a client that is sent more than the kernel keeps for it."""
LARGEST_HEAD: Final = 64 << 10
RESERVE: Final = 50


class ConnectionLimiter:
    """All connections of a server. Who waits is known in the order of waiting."""

    def __init__(
        self, most: int, *, head_seconds: float = HEAD_SECONDS, stalled_seconds: float = STALLED_SECONDS
    ) -> None:
        self._most = most
        self.head_seconds = head_seconds
        self.stalled_seconds = stalled_seconds
        self._connections: set[Connection] = set()
        self._waiting: dict[Connection, None] = {}

    @property
    def crowded(self) -> bool:
        """More of them work than should."""
        return len(self._connections) - len(self._waiting) > self._most

    def __contains__(self, connection: Connection) -> bool:
        """Whether it waits."""
        return connection in self._waiting

    def enter(self, connection: Connection) -> None:
        self._connections.add(connection)
        if len(self._connections) > self._most and self._waiting:
            first = next(iter(self._waiting))
            first.leave()
        elif len(self._connections) > self._most + RESERVE:
            connection.leave()

    def leave(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._waiting.pop(connection, None)

    def wait(self, connection: Connection) -> None:
        if connection in self._connections:
            self._waiting[connection] = None

    def work(self, connection: Connection) -> None:
        self._waiting.pop(connection, None)

    def protocol(self) -> type[asyncio.Protocol]:
        """What uvicorn is to make of each connection."""

        class OfThisLobby(Connection):
            lobby = self

        return OfThisLobby


class OverloadMiddleware:
    """Says so when too many requests are under way; a health check is always answered."""

    def __init__(self, app: ASGIApp, lobby: ConnectionLimiter) -> None:
        self._app = app
        self._lobby = lobby

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._lobby.crowded and scope["path"] != "/health":
            answer = JSONResponse({"error": "too many requests are under way"}, 503, {"Retry-After": "1"})
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)


class Connection(HttpToolsProtocol):
    """One connection, that either works on a request or waits for one, and does not wait for ever."""

    lobby: ClassVar[ConnectionLimiter]

    def __init__(self, *args: Any, **named: Any) -> None:  # noqa: ANN401 - as uvicorn makes it
        super().__init__(*args, **named)
        self._timer: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._fruitless = 0
        self._fruit = False

    def leave(self) -> None:
        """Let go of it now: it had its time, or there is no room for it."""
        self.lobby.leave(self)
        self.transport.abort()

    # -- what uvicorn's own is told ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.lobby.enter(self)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._work()
        if self._stall is not None:
            self._stall.cancel()
        self.lobby.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes that bring no request forward are a head without end, or the like of it behind a body."""
        self._fruit = False
        super().data_received(data)
        self._fruitless = 0 if self._fruit else self._fruitless + len(data)
        if self._fruitless <= LARGEST_HEAD or self.transport.is_closing():
            return
        if self in self.lobby:
            self.send_400_response("The head of the request is too long.")
        else:
            self.leave()  # an answer may be half sent already

    def pause_writing(self) -> None:
        self._stall = self.loop.call_later(self.lobby.stalled_seconds, self.leave)
        super().pause_writing()

    def resume_writing(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        super().resume_writing()

    # -- what the parser found --------------------------------------------------------------------------------------

    def on_headers_complete(self) -> None:
        self._fruit = True
        self._work()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._fruit = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._fruit = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        another = bool(self.pipeline)
        super().on_response_complete()
        if not another:
            self._wait()

    # -- waiting ----------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        self.lobby.wait(self)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(self.lobby.head_seconds, self._too_late)

    def _work(self) -> None:
        self.lobby.work(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_late(self) -> None:
        if self.transport.get_write_buffer_size():  # the answer is still on its way to a slow reader
            self._timer = self.loop.call_later(self.lobby.stalled_seconds, self.leave)
        else:
            self.leave()
