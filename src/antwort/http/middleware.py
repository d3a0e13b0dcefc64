"""Outermost ASGI middleware: authentication, rate limits, origin check, CORS, response headers, errors, access log.

Every path except the health checks and the OpenAPI document needs an API key, also one that does not exist; so does
every method, except the preflight of a configured origin. Every exception of a handler becomes an error envelope. CORS
is applied outside of both, so that web pages can read errors, and inside of the access log.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from http import HTTPStatus

import structlog
from opentelemetry.trace import use_span
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antwort.api.errors import ApiError, unavailable
from antwort.api.ids import new_id
from antwort.auth import Caller, RateLimitState
from antwort.containers.replicas.calls import CALLS_PATH, CallTokens, InvalidCall
from antwort.http.errors import log_fields, record_error, to_api_error
from antwort.http.resources.replica_calls import invalid_call
from antwort.http.services import Services
from antwort.http.wires.messages.errors import is_messages_request
from antwort.net.connections import OVERLOADED
from antwort.net.origin import cross_origin_violation
from antwort.telemetry import RequestSpan, log

_PUBLIC_PATHS = frozenset({"/healthz", "/readyz", "/openapi.json"})
_METHODS = frozenset({"GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS"})
_EXPOSED_HEADERS = (
    "content-disposition",
    "openai-organization",
    "openai-processing-ms",
    "openai-version",
    "request-id",
    "retry-after",
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
    "x-request-id",
    "x-should-retry",
)
_STARTS = frozenset({"http.response.start", "websocket.http.response.start", "websocket.accept"})
_STATUS_CLIENT_CLOSED = 499  # nginx's status for a client that disconnected; logged, never sent


class RequestMiddleware:
    """Wraps the whole application. Web pages of `cors_origins` may use it; `*` stands for all origins."""

    def __init__(self, app: ASGIApp, services: Services, cors_origins: Collection[str] = ()) -> None:
        self._app = app
        self._services = services
        self._cors_origins = frozenset(cors_origins)
        self._respond: ASGIApp = _Cors(self._handle, self._cors_origins) if cors_origins else self._handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Authenticate and handle one request."""
        is_websocket = scope["type"] == "websocket"
        if is_websocket:
            scope["method"] = "GET"
        state = _RequestState(scope, send)
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=state.id)
        if is_websocket:  # its requests have ids of their own
            structlog.contextvars.bind_contextvars(connection_id=state.id)
        span = RequestSpan(_method(scope))
        try:
            # The text of an exception may be content, so it is not recorded; the status shows that there was one.
            with use_span(span.span, record_exception=False, set_status_on_exception=False):
                await (self._handle if is_websocket else self._respond)(scope, receive, state.send)
        except ClientDisconnect:
            state.status = state.status or _STATUS_CLIENT_CLOSED
        except asyncio.CancelledError:
            state.status = state.status or HTTPStatus.SERVICE_UNAVAILABLE
            raise
        finally:
            self._log_and_count(state, scope)
            span.end(lambda: _route_path(scope), state.status)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        state: _RequestState = scope["antwort.state"]
        try:
            tokens, path = self._services.call_tokens, scope["path"]
            if tokens is not None and path.startswith(CALLS_PATH):
                self._admit_replica(scope, state, tokens)
            elif path not in _PUBLIC_PATHS:
                await self._admit(scope, state)
            await self._app(scope, receive, send)
        except ClientDisconnect:
            raise
        except Exception as error:  # noqa: BLE001 - the outermost loop: everything becomes an envelope
            response = record_error(scope, to_api_error(error))
            if not state.status:
                await response(scope, receive, send)
            elif scope["type"] == "websocket":
                with suppress(OSError):  # the client is gone
                    await send({"type": "websocket.close", "code": 1011})

    async def _admit(self, scope: Scope, state: _RequestState) -> None:
        """Authenticate the request, and count it in the rate limit; `ApiError` if it is rejected."""
        if OVERLOADED in scope:
            raise unavailable("The server has too many connections. Try again.", retry_after=1)
        headers = Headers(scope=scope)
        if self._cors_origins and _is_preflight(scope, headers):  # `_Cors` answers those of configured origins
            raise _wrong_origin()
        self._reject_cross_origin(scope)
        if scope["type"] == "websocket" and not self._is_allowed_page(headers):
            raise _wrong_origin()
        api_key = headers.get("x-api-key") if state.is_messages else None
        state.caller = self._services.authenticator.authenticate(headers.get("authorization"), api_key)
        structlog.contextvars.bind_contextvars(tenant=state.caller.tenant, key_id=state.caller.key_id)
        state.rate_limit = await self._services.rate_limiter.take(state.caller)
        scope["antwort.caller"] = state.caller

    def _admit_replica(self, scope: Scope, state: _RequestState, tokens: CallTokens) -> None:
        """Authenticate a call of another replica by its token, which names the tenant; it counts in no rate limit."""
        if OVERLOADED in scope:
            raise unavailable("The server has too many connections. Try again.", retry_after=1)
        try:
            call = tokens.verify(Headers(scope=scope).get("authorization", ""), scope["path"])
        except InvalidCall as error:
            log.warning("replica_call_rejected", reason=str(error))
            raise invalid_call() from error
        structlog.contextvars.bind_contextvars(tenant=call.tenant, key_id=call.key_id, calling_replica=call.sender)
        scope["antwort.replica_call"] = call
        scope["antwort.caller"] = state.caller = Caller(call.tenant, call.key_id)

    def _reject_cross_origin(self, scope: Scope) -> None:
        """Without API keys, reject web pages and names other than loopback names: see `antwort.net.origin`."""
        if self._services.authenticator.requires_key:
            return
        if cross_origin_violation(scope["headers"], allowed_origins=self._cors_origins) is not None:
            message = (
                "Without API keys this server answers only programs on its own machine that use a loopback name "
                "(127.0.0.1, [::1], localhost), and no web pages except those of `server.cors_origins`. "
                "`antwort keys create` makes keys for others."
            )
            raise ApiError(403, message, code="forbidden")

    def _is_allowed_page(self, headers: Headers) -> bool:
        """Whether no web page opens a WebSocket, or one that may. Browsers do not apply CORS to WebSockets."""
        origins = headers.getlist("origin")
        return "*" in self._cors_origins or all(origin in self._cors_origins for origin in origins)

    def _log_and_count(self, state: _RequestState, scope: Scope) -> None:
        seconds = time.perf_counter() - state.started
        route = _handler_name(scope)
        metrics = self._services.metrics
        metrics.requests.labels(_method(scope), route, str(state.status)).inc()
        metrics.request_seconds.labels(route).observe(seconds)
        fields = {"route": route, "method": scope["method"], "status": state.status, "ms": round(seconds * 1000, 1)}
        log.info("request", **fields, **log_fields(scope.get("antwort.error")))


class _Cors(CORSMiddleware):
    """CORS headers and preflight responses for web pages of some origins.

    Starlette answers a preflight of another origin with plain text. Here it is the application's error, as every other
    request of that origin.
    """

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=["*"],
            allow_headers=["*"],  # SDKs send headers of their own
            allow_private_network=True,
            expose_headers=_EXPOSED_HEADERS,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if (origin := headers.get("origin")) is not None and not self.is_allowed_origin(origin):
            await self.simple_response(scope, receive, send, request_headers=headers)
        else:
            await super().__call__(scope, receive, send)


def _wrong_origin() -> ApiError:
    return ApiError(403, "This origin is not in `server.cors_origins`.", code="forbidden")


def _is_preflight(scope: Scope, headers: Headers) -> bool:
    return scope["method"] == "OPTIONS" and "origin" in headers and "access-control-request-method" in headers


class _RequestState:
    """State of one request: adds the headers to its response and records the status."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.id = new_id("req_")
        self.started = time.perf_counter()
        self.status = 0
        self.caller: Caller | None = None
        self.rate_limit: RateLimitState | None = None
        self.is_messages = is_messages_request(scope["path"], scope["headers"])
        self._send = send
        scope["antwort.request_id"] = self.id
        scope["antwort.state"] = self

    async def send(self, message: Message) -> None:
        if message["type"] in _STARTS:
            self.status = message.get("status", HTTPStatus.SWITCHING_PROTOCOLS)
            headers = MutableHeaders(raw=message.setdefault("headers", []))
            for name, value in self._headers():
                headers[name] = value
            message["headers"] = headers.raw
        await self._send(message)

    def _headers(self) -> Iterable[tuple[str, str]]:
        yield "x-request-id", self.id
        if self.is_messages:
            yield "request-id", self.id
        yield "openai-version", "2020-10-01"
        yield "openai-processing-ms", str(int((time.perf_counter() - self.started) * 1000))
        yield "x-content-type-options", "nosniff"
        if self.caller is not None:
            yield "openai-organization", self.caller.tenant
        if self.rate_limit is not None:
            yield "x-ratelimit-limit-requests", str(self.rate_limit.limit)
            yield "x-ratelimit-remaining-requests", str(self.rate_limit.remaining)
            yield "x-ratelimit-reset-requests", f"{self.rate_limit.reset:.3f}s"


def _handler_name(scope: Scope) -> str:
    """The metric label of the route. Not the path: it contains ids, and labels must not grow with them."""
    endpoint = scope.get("endpoint")
    if endpoint is None:
        return "none"
    return f"{endpoint.__module__.removesuffix('.handlers').rpartition('.')[2]}.{endpoint.__name__}"


def _method(scope: Scope) -> str:
    method = scope["method"]
    return method if method in _METHODS else "_OTHER"


def _route_path(scope: Scope) -> str | None:
    """The path template of the matched route, with parameter names instead of ids; None without a match."""
    endpoint = scope.get("endpoint")
    routes = (route for route in scope["app"].routes if isinstance(route, Route | WebSocketRoute)) if endpoint else ()
    return next((route.path for route in routes if route.endpoint is endpoint), None)
