"""Hardened uvicorn protocol for WebSockets: message size and time-out, stalled readers, floods of frames, shutdown.

Uvicorn's class parses all received bytes at once, keeps every fragment of a message, answers pings of a client that
reads nothing, and waits indefinitely for the rest of a message. Here:

- Bytes are parsed a few kilobytes at a time, so that a flood of small frames does not block the event loop.
- While the client reads nothing, nothing is read from it; after `stall_timeout` it is disconnected.
- A message has at most `ws_max_size` bytes, checked by the announced length of each frame. The client of a larger one
  gets `oversize_message`, and the connection is closed with 1009. A message has to arrive at 1 kB/s at least.
- Uvicorn's shutdown leaves an open connection to the application, which closes it when its work is done.

Written for uvicorn 0.54, of whose `WebSocketsSansIOProtocol` it uses the attributes `loop`, `transport`, `conn`,
`queue`, `scope`, `frames`, `writable`, `read_paused`, `close_sent`, `close_timer`, `close_timeout` and
`handshake_complete`, and overrides the methods below.
"""

from __future__ import annotations

import asyncio
from asyncio.transports import BaseTransport
from contextlib import suppress
from http import HTTPStatus
from typing import Any, ClassVar, Final, cast

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request

from antwort.net.connections import MIN_BYTES_PER_SECOND, OVERLOADED, ConnectionLimiter, StallTimer

CLOSE_TIMEOUT: Final = 3.0
"""How long the client may take to answer a close frame."""

_SLICE: Final = 4096
"""Bytes that are parsed at a time: about 700 frames at most."""


def websocket_protocol(
    limiter: ConnectionLimiter, *, message_timeout: float, oversize_message: bytes
) -> type[LimitedWebSocket]:
    """The class for uvicorn's `ws` option. Its connections count in `limiter`, as active ones."""
    members = {"limiter": limiter, "message_timeout": message_timeout, "oversize_message": oversize_message}
    return type("LimitedWebSocket", (LimitedWebSocket,), members)


class LimitedWebSocket(WebSocketsSansIOProtocol):
    """One WebSocket."""

    limiter: ClassVar[ConnectionLimiter]
    message_timeout: ClassVar[float]
    oversize_message: ClassVar[bytes]

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - the arguments of uvicorn's class
        super().__init__(*args, **options)
        self.close_timeout = CLOSE_TIMEOUT
        self._unparsed = bytearray()
        self._is_parsing = False
        self._received = 0
        self._message_timer: asyncio.TimerHandle | None = None
        self._stall_timer = StallTimer(self.loop, self.limiter.stall_timeout, self._buffered, self.abort)

    def abort(self) -> None:
        """Close at once, without sending what is still buffered."""
        self.limiter.remove(self)
        self.transport.abort()

    def _buffered(self) -> int:
        return self.transport.get_write_buffer_size()

    # -- called by the event loop and by uvicorn ------------------------------------------------------------------

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        self.limiter.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stall_timer.stop()
        self._stop_message_timer()
        self._unparsed.clear()
        self.limiter.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        self._unparsed += data
        self._continue()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_timer.start()
        self._continue()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stall_timer.stop()
        self._continue()

    def shutdown(self) -> None:
        if self.close_sent or not self.handshake_complete:
            super().shutdown()

    # -- called by uvicorn's class --------------------------------------------------------------------------------

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101 and self.limiter.is_overloaded:  # noqa: PLR2004 - switching protocols
            cast("dict[str, Any]", self.scope)[OVERLOADED] = True

    def handle_cont(self, event: Frame) -> None:
        whole = self.frames[0]
        if not isinstance(whole, bytearray):
            whole = bytearray(whole)
        whole += event.data
        self.frames = [cast("bytes", whole)]
        if event.fin:
            self.send_receive_event_to_app()

    def send_receive_event_to_app(self) -> None:
        with suppress(InvalidState):  # text that is not UTF-8, and the client has closed the connection behind it
            super().send_receive_event_to_app()

    def handle_parser_exception(self) -> None:
        """Close after a violation of the protocol, or a message that is too large. What still arrives is discarded."""
        if self.close_sent or self.transport.is_closing():
            return
        sent = self.conn.close_sent
        code = CloseCode.ABNORMAL_CLOSURE if sent is None else sent.code
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code})
        if code == CloseCode.MESSAGE_TOO_BIG:
            self.transport.write(Frame(Opcode.TEXT, self.oversize_message).serialize(mask=False))
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.stop_keepalive()
        self._stop_message_timer()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        # A socket with unread bytes would be reset, and the client might not read the reason.
        self.close_timer = self.loop.call_later(self.close_timeout, self.abort)

    def handle_ping(self) -> None:
        if not self.close_sent:  # after it nothing may be sent
            super().handle_ping()

    def keepalive_timeout(self) -> None:
        """The client has not answered a ping: it is gone, or reads nothing, or sends a message before its answer."""
        self.pong_timer = None
        if self._message_timer is not None and self.ping_timeout is not None:
            self.pong_timer = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)
        else:
            self.abort()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        super().on_task_complete(task)
        if not self.transport.is_closing() or self._buffered():
            self._stall_timer.start()

    async def send(self, message: Any) -> None:  # noqa: ANN401 - an ASGI message
        if self.close_sent:  # by this class, not by the application
            raise ClientDisconnected
        await super().send(message)
        if self.close_sent:
            self._continue()  # the answer to the close frame

    async def receive(self) -> Any:  # noqa: ANN401 - an ASGI message
        message = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            self._continue()
        return message

    # -- flow control ---------------------------------------------------------------------------------------------

    @property
    def _may_read(self) -> bool:
        """Whether the application has taken all messages, and the client reads; or the connection is being closed."""
        return self.close_sent or (not self.read_paused and self.writable.is_set())

    def _continue(self) -> None:
        """Parse what was received, a slice at a time, and read more when all of it is parsed."""
        if self.transport.is_closing():
            return
        if self._unparsed and self._may_read and not self._is_parsing:
            self._is_parsing = True
            try:
                self._parse_slice()
            finally:
                self._is_parsing = False
            if self.transport.is_closing():
                return
        self._update_message_timer()
        if self._unparsed and self._may_read:
            self.loop.call_soon(self._continue)
        if self._may_read and not self._unparsed:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def _reject_handshake(self) -> None:
        """A handshake that only uvicorn's HTTP parser accepts, such as one with a very long header."""
        self.transport.write(self.limiter.render_error(HTTPStatus.BAD_REQUEST))
        self._stall_timer.start()
        self.transport.close()

    def _parse_slice(self) -> None:
        """Parse a slice, and those of the same large frame: the parser only waits for its rest."""
        is_within_frame = True
        while self._unparsed and is_within_frame:
            part = bytes(self._unparsed[:_SLICE])
            del self._unparsed[:_SLICE]
            before = len(self.conn.reader.buffer)
            super().data_received(part)
            is_within_frame = len(self.conn.reader.buffer) == before + len(part)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self._reject_handshake()

    # -- time-out of a message ------------------------------------------------------------------------------------

    def _update_message_timer(self) -> None:
        has_part = bool(self.frames or self.conn.reader.buffer) and not self.close_sent
        if not has_part:
            self._stop_message_timer()
        elif self._message_timer is None:
            self._start_message_timer()

    def _start_message_timer(self) -> None:
        self._message_timer = self.loop.call_later(self.message_timeout, self._on_message_timeout, self._received)

    def _stop_message_timer(self) -> None:
        if self._message_timer is not None:
            self._message_timer.cancel()
            self._message_timer = None

    def _on_message_timeout(self, received_before: int) -> None:
        is_slow = self._received - received_before < self.message_timeout * MIN_BYTES_PER_SECOND
        if is_slow and self._may_read:
            self.conn.fail(CloseCode.POLICY_VIOLATION, "the message did not arrive in time")
            self.handle_parser_exception()
        else:
            self._start_message_timer()
