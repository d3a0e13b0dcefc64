"""One WebSocket: reads its messages, runs their responses lane by lane, and closes it.

One task reads, one watches the time, and each lane with a request has one that sends the events of its responses.
Nothing is produced before the previous event has been sent. When the client is gone, or reads nothing for the stall
time-out, its responses are cancelled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Send
from starlette.websockets import WebSocketDisconnect

from antwort.api.errors import ApiError, invalid
from antwort.http.bodies import MAX_INLINE_BYTES, check_nesting, too_large
from antwort.http.services import Services
from antwort.http.wires.websocket.answer import Answerer
from antwort.http.wires.websocket.history import ConnectionHistory
from antwort.http.wires.websocket.lanes import MAX_RUNNING, Lanes
from antwort.http.wires.websocket.messages import ClientMessage, MessageError, error_message, read_envelope


class Ending(NamedTuple):
    """Why the server closes a connection: a code, after which clients connect again, and the reason."""

    code: int
    reason: str


STOPPING: Final = Ending(1012, "the server is stopping")
EXPIRED: Final = Ending(1001, "the connection has reached its maximum age")
IDLE: Final = Ending(1001, "the connection was idle")


class WebSocketConnection:
    """An accepted WebSocket of an authenticated caller."""

    def __init__(self, services: Services, key_id: str, receive: Receive, send: Send) -> None:
        self._services = services
        self._receive = receive
        self._send = send
        self._settings = services.config.server.websocket
        self._max_body = services.config.server.max_body
        self._answerer = Answerer(services, key_id, ConnectionHistory(self._settings.max_history), self._send_message)
        self._lanes = Lanes(self._max_body)
        self._slots = asyncio.Semaphore(MAX_RUNNING)
        self._tasks: dict[str | None, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._opened_at = self._active_at = time.monotonic()

    async def serve(self) -> None:
        """Serve until the client closes the connection, or until it ends here."""
        reading, watching = asyncio.create_task(self._read_all()), asyncio.create_task(self._wait_for_ending())
        try:
            with self._services.websockets.notify(self._changed.set):
                await asyncio.wait({reading, watching}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._cancel(reading, watching)
            await self._close(STOPPING)
            raise
        await self._cancel(reading, watching)
        if not reading.cancelled():
            reading.result()
        elif not watching.cancelled():
            await self._close(watching.result())

    async def _cancel(self, *others: asyncio.Task[Any]) -> None:
        """End all tasks; the responses that run are cancelled."""
        tasks = [*others, *self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _send_message(self, message: bytes) -> None:
        try:
            await self._send({"type": "websocket.send", "text": message.decode()})
        except WebSocketDisconnect as error:
            raise ClientDisconnect from error

    # ── messages of the client ───────────────────────────────────────────────────────────────────────────────────────

    async def _read_all(self) -> None:
        """Read until the client closes the connection."""
        with suppress(ClientDisconnect):
            while (message := await self._receive())["type"] != "websocket.disconnect":
                try:
                    self._enqueue(await self._read(message))
                except MessageError as refused:
                    await self._send_message(error_message(refused.error, refused.stream_id))
                await asyncio.sleep(0)  # a client that sends many small messages must not block the event loop

    async def _read(self, message: Any) -> ClientMessage:  # noqa: ANN401 - an ASGI message
        text: str | None = message.get("text")
        if text is None:
            raise MessageError(invalid("Binary messages are not supported: send JSON as text.", code="invalid_json"))
        if len(text) <= MAX_INLINE_BYTES:
            return self._read_text(text)
        return await asyncio.to_thread(self._read_text, text)

    def _read_text(self, text: str) -> ClientMessage:
        body = text.encode()
        if len(body) > self._max_body:
            raise MessageError(too_large(self._max_body))
        try:
            check_nesting(body)
        except ApiError as error:
            raise MessageError(error) from error
        return read_envelope(body)

    def _enqueue(self, message: ClientMessage) -> None:
        if self._is_expired:
            raise MessageError(_connection_limit(self._settings.max_age), message.stream_id)
        try:
            self._lanes.add(message)
        except ApiError as error:
            raise MessageError(error, message.stream_id) from error
        lane = message.stream_id
        if lane not in self._tasks:
            self._tasks[lane] = asyncio.create_task(self._run_lane(lane))

    async def _run_lane(self, lane: str | None) -> None:
        """Answer the requests of a lane, until none waits."""
        try:
            while self._lanes.has_next(lane):
                async with self._slots:
                    await self._answerer.answer(self._lanes.take(lane))
        except ClientDisconnect:
            pass  # reading ends too
        finally:
            del self._tasks[lane]
            self._active_at = time.monotonic()
            self._changed.set()

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _wait_for_ending(self) -> Ending:
        """Wait until the connection has to end and no response runs."""
        while True:
            self._changed.clear()
            if not self._tasks and (ending := self._ending()) is not None:
                return ending
            with suppress(TimeoutError):
                async with asyncio.timeout(min(self._deadlines(), default=None)):
                    await self._changed.wait()

    @property
    def _is_expired(self) -> bool:
        return time.monotonic() >= self._opened_at + self._settings.max_age

    def _ending(self) -> Ending | None:
        """Why a connection without running responses has to end now."""
        if self._services.websockets.stopping:
            return STOPPING
        if self._is_expired:
            return EXPIRED
        return IDLE if time.monotonic() >= self._active_at + self._settings.idle_timeout else None

    def _deadlines(self) -> Iterator[float]:
        """The seconds after which the connection may have to end. One with a running response ends when it ended."""
        if not self._tasks:
            now = time.monotonic()
            yield max(0.0, self._opened_at + self._settings.max_age - now)
            yield max(0.0, self._active_at + self._settings.idle_timeout - now)

    async def _close(self, ending: Ending) -> None:
        with suppress(ClientDisconnect, WebSocketDisconnect):  # the client has closed it meanwhile
            if ending is EXPIRED:
                await self._send_message(error_message(_connection_limit(self._settings.max_age)))
            await self._send({"type": "websocket.close", "code": ending.code, "reason": ending.reason})


def _connection_limit(max_age: float) -> ApiError:
    message = (
        f"Responses websocket connection limit reached ({max_age / 60:g} minutes). Create a new websocket connection "
        "to continue."
    )
    return invalid(message, code="websocket_connection_limit_reached")
