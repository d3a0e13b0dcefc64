"""Answers a `response.create` within the limits of the caller: with events or an error, in the log and the metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from http import HTTPStatus

import structlog
from opentelemetry.trace import use_span
from starlette.requests import ClientDisconnect

from antwort.api.errors import ApiError, unavailable
from antwort.api.events import FINAL_EVENTS, AnyEvent, ErrorEvent
from antwort.api.ids import new_id
from antwort.api.projection import ResponseView
from antwort.auth import Caller
from antwort.engine.driver import ResponseRun
from antwort.http.bodies import MAX_INLINE_BYTES
from antwort.http.errors import from_model_fault, log_fields, to_api_error
from antwort.http.services import Services
from antwort.http.wires.begin import begin_response, failure_events
from antwort.http.wires.websocket.history import ConnectionHistory
from antwort.http.wires.websocket.messages import (
    PATH,
    ClientMessage,
    CreateMessage,
    error_message,
    event_message,
    read_create,
)
from antwort.telemetry import RequestSpan, log

_METHOD = "WEBSOCKET"
_ROUTE = "websocket.create"
_STATUS_CLIENT_CLOSED = 499


@dataclass
class Answerer:
    """Answers the requests of one connection. `send` raises `ClientDisconnect` if the client is gone."""

    services: Services
    key_id: str
    history: ConnectionHistory
    send: Callable[[bytes], Awaitable[None]]

    async def answer(self, message: ClientMessage) -> None:
        """Run the response of a request, and send its events; or send the error."""
        request_id, started = new_id("req_"), time.perf_counter()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        span, status, error = RequestSpan(_METHOD), int(HTTPStatus.OK), None
        try:
            with use_span(span.span, record_exception=False, set_status_on_exception=False):
                error = await self._answer(message, request_id)
                status = status if error is None else error.status
        except (ClientDisconnect, asyncio.CancelledError):
            status = _STATUS_CLIENT_CLOSED
            raise
        finally:
            self._log_and_count(status, error, time.perf_counter() - started)
            span.end(lambda: PATH, status)

    async def _answer(self, message: ClientMessage, request_id: str) -> ApiError | None:
        """The error that was sent, if any."""
        try:
            caller = await self._admit()
            created = await self._read(message.body)
            return await self._respond(caller, created, message.stream_id)
        except ClientDisconnect:
            raise
        except Exception as raised:  # noqa: BLE001 - the outermost loop of a request: everything becomes a message
            error = to_api_error(raised)
            if error.retry_after is None:  # else the client repeats the request
                self.history.evict(message.stream_id, message.previous)
            await self.send(error_message(error, message.stream_id, request_id))
            return error

    async def _admit(self) -> Caller:
        """The caller, if its key is still valid, and counted in its rate limit."""
        if self.services.stopping:
            raise unavailable("The server is stopping. Open another connection.", retry_after=1)
        caller = self.services.authenticator.caller_for_key(self.key_id)
        if caller is None:
            raise ApiError(401, "The API key of this connection is not valid any more.", code="invalid_api_key")
        await self.services.rate_limiter.take(caller)
        return caller

    async def _read(self, body: bytes) -> CreateMessage:
        tool_types = self.services.engine.tool_types
        if len(body) <= MAX_INLINE_BYTES:
            return read_create(body, tool_types)
        return await asyncio.to_thread(read_create, body, tool_types)

    async def _respond(self, caller: Caller, created: CreateMessage, stream_id: str | None) -> ApiError | None:
        """Run the response and send its events. The error is that of a response that failed."""
        services, request = self.services, created.request
        with ExitStack() as cleanup:
            run = await begin_response(
                services, caller, request, cleanup, recent=self.history, generate=created.generate
            )
            services.active_responses[run.response.id] = run
            view = services.view(request.include or (), obfuscation=request.is_obfuscated)
            sent = _SentEvents(run, view, stream_id, self.send)
            try:
                async with aclosing(run.events()) as events:
                    async for event in events:
                        if isinstance(event, FINAL_EVENTS):  # before the client can send its next request
                            self._end(run, stream_id)
                            cleanup.close()
                        await sent.send(event)
            except ClientDisconnect:
                raise
            except Exception as raised:  # noqa: BLE001 - events have been sent: the error is one of them
                error = to_api_error(raised)
                self.history.evict(stream_id, request.previous_response_id)
                await sent.fail(error)
                return error
        return None if run.fault is None else from_model_fault(run.fault)

    def _end(self, run: ResponseRun, stream_id: str | None) -> None:
        """Keep the response for its continuation; a failed one ends the chain that it continued."""
        if run.response.status in ("completed", "incomplete"):
            self.history.keep(stream_id, run)
        else:
            self.history.evict(stream_id, run.turn.request.previous_response_id)

    def _log_and_count(self, status: int, error: ApiError | None, seconds: float) -> None:
        metrics = self.services.metrics
        metrics.requests.labels(_METHOD, _ROUTE, str(status)).inc()
        metrics.request_seconds.labels(_ROUTE).observe(seconds)
        fields = {"route": _ROUTE, "method": _METHOD, "status": status, "ms": round(seconds * 1000, 1)}
        log.info("request", **fields, **log_fields(error))


@dataclass
class _SentEvents:
    """The events of a response, as messages."""

    run: ResponseRun
    view: ResponseView
    stream_id: str | None
    send_message: Callable[[bytes], Awaitable[None]]
    number: int = -1
    ended: bool = False

    async def send(self, event: AnyEvent) -> None:
        self.number, self.ended = event.sequence_number, isinstance(event, FINAL_EVENTS)
        fault = self.run.fault if isinstance(event, ErrorEvent) else None
        status = HTTPStatus.INTERNAL_SERVER_ERROR if fault is None else fault.status
        await self.send_message(event_message(self.view, event, self.stream_id, status))

    async def fail(self, error: ApiError) -> None:
        """The end of a response that broke."""
        if self.ended:
            return
        for event in failure_events(self.run, error, self.number):
            await self.send_message(event_message(self.view, event, self.stream_id, error.status))
