"""Connection limits and a hardened uvicorn protocol: head size and time-out, stalled readers, eviction, overload.

Uvicorn waits indefinitely for a request head that arrives byte by byte and for a client that does not read its
response, buffers a head of any size, and counts idle connections like active ones. Here:

- A head has to be complete within `head_timeout` and `max_head` bytes, else 408 or 431; so do trailers behind a body.
- A client that reads nothing, or less than 1 kB/s, for `stall_timeout` is disconnected.
- Above `max_connections` the connection that has been idle for longest is closed.
- When all connections are active, `RESERVE` more are accepted; their requests have `OVERLOADED` in the ASGI scope and
  are answered 503, except health checks.

The protocol relies on these internals of uvicorn, which may change with any minor version (written for 0.34 to 0.54):
the class `HttpToolsProtocol` of `uvicorn.protocols.http.httptools_impl` with the attributes `loop`, `transport`,
`scope`, `pipeline` and `cycle` (`response_complete`, `keep_alive`); its parser callbacks `on_message_begin`,
`on_headers_complete`, `on_body` and `on_message_complete`; `on_response_complete`, called at the end of each response;
`send_400_response`, called for invalid requests; `_should_upgrade`, `handle_websocket_upgrade` and `url` for WebSocket
requests; `_unsupported_upgrade_warning`, which only logs them; and that the request's task starts in
`on_headers_complete`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection
from http import HTTPStatus
from typing import Any, ClassVar, Final, Protocol, cast

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

OVERLOADED: Final = "antwort.overloaded"
"""Key in the ASGI scope of a request that arrived while all connections were active."""

HEAD_TIMEOUT: Final = 10.0
STALL_TIMEOUT: Final = 60.0
MAX_HEAD_BYTES: Final = 64 << 10
RESERVE: Final = 50
"""Connections above the limit, for health checks and 503 responses while all others are active."""

MIN_BYTES_PER_SECOND: Final = 1024
"""Below this rate a client counts as stalled."""

ERROR_MESSAGES: Final = {
    HTTPStatus.BAD_REQUEST: "This is not a valid HTTP request.",
    HTTPStatus.REQUEST_TIMEOUT: "The headers of your request did not arrive in time.",
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "The headers of your request are too large.",
}


def render_error(status: HTTPStatus) -> bytes:
    """A complete HTTP response with a JSON error, after which the connection is closed."""
    return render_response(status, json.dumps({"error": ERROR_MESSAGES[status]}).encode())


def render_response(status: HTTPStatus, body: bytes, headers: str = "") -> bytes:
    """A complete HTTP response with this JSON body and further header lines."""
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        "content-type: application/json\r\n"
        f"content-length: {len(body)}\r\n"
        f"{headers}connection: close\r\n\r\n"
    )
    return head.encode() + body


class LimitedConnection(Protocol):
    """A connection that a `ConnectionLimiter` counts."""

    def abort(self) -> None:
        """Close at once, without sending what is still buffered."""
        ...


class StallTimer:
    """Aborts a connection whose client reads nothing, or less than 1 kB/s, while bytes are buffered for it.

    To be started when writing is paused, or at the end: nothing is written while it runs, so the buffer can only
    shrink.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        timeout: float,
        buffered: Callable[[], int],
        abort: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._timeout = timeout
        self._buffered = buffered
        self._abort = abort
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start, or start again."""
        self.stop()
        self._handle = self._loop.call_later(self._timeout, self._on_timeout, self._buffered())

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _on_timeout(self, buffered_before: int) -> None:
        """Abort unless the client has read at the minimum rate since the timer started."""
        self._handle = None
        buffered = self._buffered()
        if not buffered:
            return
        if buffered_before - buffered < self._timeout * MIN_BYTES_PER_SECOND:
            self._abort()
        else:
            self.start()


class ConnectionLimiter:
    """All connections of a server, idle ones in the order in which they became idle.

    `protocol` is the class for uvicorn's `http` option. `render_error` writes the responses to requests that do not
    reach the application. Requests for a WebSocket at one of `websocket_paths` are upgraded, if uvicorn has a class for
    them; others are handled as plain HTTP requests.
    """

    def __init__(
        self,
        max_connections: int,
        *,
        max_head: int = MAX_HEAD_BYTES,
        head_timeout: float = HEAD_TIMEOUT,
        stall_timeout: float = STALL_TIMEOUT,
        render_error: Callable[[HTTPStatus], bytes] = render_error,
        websocket_paths: Collection[bytes] = (),
    ) -> None:
        self._max_connections = max_connections
        self.max_head = max_head
        self.head_timeout = head_timeout
        self.stall_timeout = stall_timeout
        self.render_error = render_error
        self.websocket_paths = frozenset(websocket_paths)
        self._connections: set[LimitedConnection] = set()
        self._idle: dict[LimitedConnection, None] = {}
        self.protocol: type[_LimitedProtocol] = type("LimitedProtocol", (_LimitedProtocol,), {"limiter": self})

    @property
    def count(self) -> int:
        return len(self._connections)

    @property
    def active(self) -> int:
        """Connections with a request whose response is not complete."""
        return len(self._connections) - len(self._idle)

    @property
    def is_overloaded(self) -> bool:
        return self.active > self._max_connections

    def add(self, connection: LimitedConnection) -> None:
        """Register a new connection. Above the limit, close the one that has been idle for longest, or this one."""
        limit = self._max_connections + (RESERVE if self.active >= self._max_connections else 0)
        self._connections.add(connection)
        if len(self._connections) > limit:
            next(iter(self._idle), connection).abort()

    def remove(self, connection: LimitedConnection) -> None:
        self._connections.discard(connection)
        self._idle.pop(connection, None)

    def mark_idle(self, connection: LimitedConnection) -> None:
        if connection in self._connections:
            self._idle[connection] = None

    def mark_active(self, connection: LimitedConnection) -> None:
        self._idle.pop(connection, None)


class OverloadMiddleware:
    """Answers requests that have `OVERLOADED` in their scope with `response`, except those to `exempt` paths."""

    def __init__(self, app: ASGIApp, response: ASGIApp, *, exempt: Collection[str]) -> None:
        self._app = app
        self._response = response
        self._exempt = exempt

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        rejected = OVERLOADED in scope and scope["path"] not in self._exempt
        await (self._response if rejected else self._app)(scope, receive, send)


class _LimitedProtocol(HttpToolsProtocol):
    """One connection. It is active from the end of a request's head to the end of the response, else idle."""

    limiter: ClassVar[ConnectionLimiter]

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - the arguments of uvicorn's class
        super().__init__(*args, **options)
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer = StallTimer(self.loop, self.limiter.stall_timeout, lambda: self._buffered, self.abort)
        self._is_upgraded = False
        self._is_write_paused = False
        self._expects_head = True  # else the body or the trailers of a request
        self._has_partial_head = False
        self._has_progressed = False
        self._unparsed = 0  # bytes since the last complete head, part of a body, or end of a request

    def abort(self) -> None:
        """Close at once, without sending what is still buffered."""
        self.limiter.remove(self)
        self.transport.abort()

    @property
    def _is_responding(self) -> bool:
        cycle = cast("object | None", self.cycle)
        return cycle is not None and not self.cycle.response_complete

    # -- called by the event loop ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.limiter.add(self)
        self.limiter.mark_idle(self)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._stall_timer.stop()
        self.limiter.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._has_progressed = False
        super().data_received(data)
        if self._is_upgraded or self.transport.is_closing():
            return
        self._unparsed = 0 if self._has_progressed else self._unparsed + len(data)
        if self._unparsed > self.limiter.max_head:
            self._reject(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif self._expects_head and not self._is_responding:
            self._start_head_timer()  # also for line breaks before a request, which stop uvicorn's keep-alive timer

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._stall_timer.start()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._stall_timer.stop()
        super().resume_writing()

    # -- called by the parser and by uvicorn ----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._has_partial_head = True
        self._start_head_timer()

    def on_headers_complete(self) -> None:
        self._stop_head_timer()
        if not self._is_write_paused:
            self._stall_timer.stop()
        self.limiter.mark_active(self)
        is_overloaded = self.limiter.is_overloaded
        if is_overloaded:
            cast("dict[str, Any]", self.scope)[OVERLOADED] = True
        super().on_headers_complete()
        if is_overloaded and cast("object | None", self.cycle) is not None:
            self.cycle.keep_alive = False
        self._has_progressed = True
        self._expects_head = self._has_partial_head = False

    def on_body(self, body: bytes) -> None:
        self._has_progressed = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._has_progressed = self._expects_head = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        is_pipelined = bool(self.pipeline)
        super().on_response_complete()
        if is_pipelined:
            return
        self.limiter.mark_idle(self)
        if not self._expects_head:  # the client is still sending the body of the request
            self._start_head_timer()
        if self._buffered:
            self._stall_timer.start()

    def send_400_response(self, msg: str) -> None:
        del msg
        self._reject(HTTPStatus.BAD_REQUEST)

    def _should_upgrade(self) -> bool:
        is_websocket = self.url.partition(b"?")[0] in self.limiter.websocket_paths
        return is_websocket and not self._is_responding and self.scope["method"] == "GET" and super()._should_upgrade()

    def handle_websocket_upgrade(self) -> None:
        self._is_upgraded = True
        self._stop_head_timer()
        self._stall_timer.stop()
        self.limiter.remove(self)
        super().handle_websocket_upgrade()

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: the application answers the request, and uvicorn would advise to install a WebSocket library."""

    def _reject(self, status: HTTPStatus) -> None:
        """Send an error and close; only close if the error would be sent within a response."""
        if self._is_responding or not self._expects_head:
            self.abort()
        else:
            self.transport.write(self.limiter.render_error(status))
            self._stall_timer.start()
            self.transport.close()

    # -- time-outs ------------------------------------------------------------------------------------------------

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.limiter.head_timeout, self._on_head_timeout)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _on_head_timeout(self) -> None:
        self._head_timer = None
        if self._is_responding or self._buffered:
            self._start_head_timer()
        elif self._has_partial_head or (self._unparsed and self._expects_head):
            self._reject(HTTPStatus.REQUEST_TIMEOUT)
        else:
            self.abort()

    @property
    def _buffered(self) -> int:
        return self.transport.get_write_buffer_size()
