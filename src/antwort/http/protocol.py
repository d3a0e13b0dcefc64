"""The wire below the application: how long and how large the head of a request may be, and errors there as envelopes.

Uvicorn waits for ever for a head that comes byte by byte, keeps all of one that does not
end, and answers in plain text. Bodies are the application's: see `bodies`.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, cast

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from antwort.api.errors import ApiError, invalid
from antwort.api.ids import new_id
from antwort.config import ServerSettings

CROWDED = "antwort.crowded"
"""In the scope of a request that came while there were too many connections: the gate refuses it."""


def protocol_for(settings: ServerSettings) -> type[HttpToolsProtocol]:
    """Uvicorn's protocol, within these limits."""

    class Guarded(GuardedProtocol):
        limits = settings

    return Guarded


class GuardedProtocol(HttpToolsProtocol):
    """One connection. `limits` are the class's: uvicorn makes the objects."""

    limits: ServerSettings

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - whatever uvicorn gives its own
        super().__init__(*args, **options)
        self._deadline: asyncio.TimerHandle | None = None
        self._in_head = True
        self._head = 0  # bytes of it so far, about
        self._ended = False  # whether a request ended since

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        was_in_head = self._in_head
        super().data_received(data)
        if not self._in_head or self.transport.is_closing():
            return
        if was_in_head and not self._ended:  # else it is the rest of a request, and perhaps some of the next
            self._head += len(data)
        self._ended = False
        if self._head > self.limits.max_head:
            self._refuse(ApiError(431, "The headers of your request are too large.", code="headers_too_large"))
        elif not self._busy:  # line breaks before a request are data, too, and end uvicorn's own patience
            self._expect_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head += 1
        self._expect_head()

    def on_headers_complete(self) -> None:
        self._forget_deadline()
        self._in_head, self._head = False, 0
        most = self.limits.max_connections
        crowded = len(self.connections) > most or len(self.tasks) >= most
        if crowded:
            cast("dict[str, Any]", self.scope)[CROWDED] = True
        super().on_headers_complete()
        if crowded:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        self._in_head = self._ended = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        del msg
        self._refuse(invalid("This is not a valid HTTP request.", code="invalid_http"))

    @property
    def _busy(self) -> bool:
        """Whether an answer is on its way out."""
        cycle = cast("object | None", self.cycle)
        return cycle is not None and not self.cycle.response_complete

    def _expect_head(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.limits.head_timeout, self._too_slow)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if self._busy:
            self._expect_head()
        elif self._head:
            self._refuse(ApiError(408, "The headers of your request did not arrive in time.", code="timeout"))
        else:
            self.transport.close()

    def _refuse(self, error: ApiError) -> None:
        """The last thing that is said here; nothing, where that would get into the middle of an answer."""
        if not self._busy:
            self.transport.write(_as_bytes(error))
        self.transport.close()


def _as_bytes(error: ApiError) -> bytes:
    body = msgspec.json.encode(error.envelope())
    head = (
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
        "content-type: application/json\r\n"
        f"content-length: {len(body)}\r\n"
        f"x-request-id: {new_id('req_')}\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode() + body
