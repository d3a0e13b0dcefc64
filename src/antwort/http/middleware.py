"""The gate that every request passes: who asks, how often, and what every answer carries.

Closed unless said otherwise: a path that is not listed as open needs a key, also one that
does not exist. Nothing that goes wrong behind the gate gets past it as anything but an
envelope.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from http import HTTPStatus

import structlog
from opentelemetry.trace import use_span
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antwort.api.errors import ApiError, unavailable
from antwort.api.ids import new_id
from antwort.auth import Allowance, Caller, is_loopback
from antwort.http.errors import answer, explained
from antwort.http.protocol import CROWDED
from antwort.http.services import Services
from antwort.telemetry import RequestSpan, log

_OPEN = frozenset({"/healthz", "/readyz", "/openapi.json"})
_GONE = 499  # what nginx calls a caller who went away; never sent, only logged


class RequestMiddleware:
    """ASGI middleware around everything."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let one request in, or not."""
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        visit = _Visit(scope, send)
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=visit.id)
        told = RequestSpan(_method(scope))
        try:
            # What an exception says may be content, so it is not recorded; that there was one, the status tells.
            with use_span(told.span, record_exception=False, set_status_on_exception=False):
                await self._pass(scope, receive, visit)
        except ClientDisconnect:
            visit.status = visit.status or _GONE
        except asyncio.CancelledError:
            visit.status = visit.status or HTTPStatus.SERVICE_UNAVAILABLE
            raise
        except Exception as error:  # noqa: BLE001 - the outermost loop: everything becomes an envelope
            explanation = explained(error)
            if not visit.status:
                await answer(explanation)(scope, receive, visit.send)
        finally:
            self._tell(visit, scope)
            told.end(lambda: _path(scope), visit.status)

    async def _pass(self, scope: Scope, receive: Receive, visit: _Visit) -> None:
        if scope["path"] not in _OPEN:
            if CROWDED in scope:
                raise unavailable("The server has too many connections. Try again.", retry_after=1)
            headers = Headers(scope=scope)
            self._refuse_strangers(headers)
            visit.caller = self._services.authenticator.authenticate(headers.get("authorization"))
            structlog.contextvars.bind_contextvars(tenant=visit.caller.tenant, key_id=visit.caller.key_id)
            visit.allowance = self._services.rate_limiter.take(visit.caller)
            scope["antwort.caller"] = visit.caller
        await self._app(scope, receive, visit.send)

    def _refuse_strangers(self, headers: Headers) -> None:
        """Without keys, keep out web pages that a browser on this machine shows.

        They come under a name of their own that leads here, or from another site.
        """
        if self._services.authenticator.requires_key:
            return
        host = _host(headers.get("host", ""))
        origin = headers.get("origin")
        if not is_loopback(host) or (origin is not None and not is_loopback(_host(origin.partition("://")[2]))):
            raise ApiError(403, "Without keys this server answers only to its own machine.", code="forbidden")

    def _tell(self, visit: _Visit, scope: Scope) -> None:
        seconds = time.perf_counter() - visit.began
        route = visit.route(scope)
        metrics = self._services.metrics
        metrics.requests.labels(_method(scope), route, str(visit.status)).inc()
        metrics.request_seconds.labels(route).observe(seconds)
        log.info("request", route=route, method=scope["method"], status=visit.status, ms=round(seconds * 1000, 1))


class _Visit:
    """One request on its way through: puts the headers on its answer, and remembers the status."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.id = new_id("req_")
        self.began = time.perf_counter()
        self.status = 0
        self.caller: Caller | None = None
        self.allowance: Allowance | None = None
        self._send = send
        scope["antwort.request_id"] = self.id

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(raw=message.setdefault("headers", []))
            for name, value in self._headers():
                headers[name] = value
            message["headers"] = headers.raw
        await self._send(message)

    def _headers(self) -> Iterable[tuple[str, str]]:
        yield "x-request-id", self.id
        yield "openai-version", "2020-10-01"
        yield "openai-processing-ms", str(int((time.perf_counter() - self.began) * 1000))
        yield "x-content-type-options", "nosniff"
        if self.caller is not None:
            yield "openai-organization", self.caller.tenant
        if self.allowance is not None:
            yield "x-ratelimit-limit-requests", str(self.allowance.limit)
            yield "x-ratelimit-remaining-requests", str(self.allowance.remaining)
            yield "x-ratelimit-reset-requests", f"{self.allowance.reset:.3f}s"

    def route(self, scope: Scope) -> str:
        """The handler's name: a path would hold ids, and a label must not grow with them."""
        endpoint = scope.get("endpoint")
        if endpoint is None:
            return "none"
        return f"{endpoint.__module__.rpartition('.')[2]}.{endpoint.__name__}"


def _method(scope: Scope) -> str:
    method = scope["method"]
    return method if method in ("GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS") else "_OTHER"


def _path(scope: Scope) -> str | None:
    """The path of the route that was taken, with names in the place of ids; None where there was none."""
    endpoint = scope.get("endpoint")
    routes = (route for route in scope["app"].routes if isinstance(route, Route)) if endpoint else ()
    return next((route.path for route in routes if route.endpoint is endpoint), None)


def _host(authority: str) -> str:
    """The host of `host:port`, also of one in brackets."""
    if authority.startswith("["):
        return authority.partition("]")[0] + "]"
    return authority.partition(":")[0]
