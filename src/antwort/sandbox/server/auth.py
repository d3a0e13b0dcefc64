"""Authentication of the sandbox server: a bearer token, or without one loopback clients only."""

from __future__ import annotations

import hmac
from typing import Final

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from antwort.net.origin import cross_origin_violation
from antwort.net.sandbox_token import ROUTED_TOKEN_HEADER

_TOKEN_REQUIRED: Final = "send the server's token: Authorization: Bearer …"  # noqa: S105 - a message, not a secret
_FORBIDDEN: Final = {
    "host": (
        "this server has no token, so it answers only programs on its own machine that use a loopback name "
        "(127.0.0.1, [::1], localhost); to use another name, start it with SANDBOX_TOKEN"
    ),
    "origin": (
        "this server has no token, so it answers no web page: the request has an Origin, or came from another site; "
        "to allow web pages, start it with SANDBOX_TOKEN"
    ),
}


class BearerTokenMiddleware:
    """Requires the bearer token for every path except the health check."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != "/health":
            headers = dict(scope["headers"])
            authorization = headers.get(ROUTED_TOKEN_HEADER.encode()) or headers.get(b"authorization", b"")
            if not hmac.compare_digest(authorization, self._expected):
                await JSONResponse({"error": _TOKEN_REQUIRED}, 401)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class LoopbackOnlyMiddleware:
    """Rejects every request that a web page may have caused, including the health check: see `antwort.net.origin`.

    `check_host=False` is for Unix sockets.
    """

    def __init__(self, app: ASGIApp, *, check_host: bool) -> None:
        self._app = app
        self._check_host = check_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            violation = cross_origin_violation(scope["headers"], check_host=self._check_host)
            if violation is not None:
                await JSONResponse({"error": _FORBIDDEN[violation]}, 403)(scope, receive, send)
                return
        await self._app(scope, receive, send)
