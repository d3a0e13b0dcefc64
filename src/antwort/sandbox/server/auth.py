"""Who is let in: with a token whoever sends it, without one only programs of this machine.

A browser on this machine is no such program: a page from anywhere can make it send requests to loopback, even under a
name of the page's own that is made to resolve to it (DNS rebinding). What gives it away are the headers that no page
can leave out or change: the name it was told to ask for, and where the page came from.
"""

from __future__ import annotations

import hmac
from typing import Final

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from antwort.sandbox.server.settings import is_loopback

_WHO: Final = "send the server's token: Authorization: Bearer …"
_NAME: Final = (
    "this server has no token, so it answers only programs of its own machine, that call it by a loopback name "
    "(127.0.0.1, [::1], localhost); for any other name start it with SANDBOX_TOKEN"
)
_PAGE: Final = (
    "this server has no token, so it answers no web page: the request has an Origin, or came from another site; "
    "to let a page in, start the server with SANDBOX_TOKEN"
)
_ELSEWHERE: Final = frozenset({b"cross-site", b"same-site"})


class BearerTokenMiddleware:
    """Nothing but the health check is answered without the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != "/health":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                await JSONResponse({"error": _WHO}, 401)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class LoopbackOnlyMiddleware:
    """Without a token: nothing is answered that a browser may have been made to ask, not even the health check.

    Names mean nothing on a Unix socket, which no browser can reach; a proxy before it still hands on an `Origin`.
    """

    def __init__(self, app: ASGIApp, *, named: bool) -> None:
        self._app = app
        self._named = named

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        why = self._why_not(scope["headers"]) if scope["type"] == "http" else None
        if why is not None:
            await JSONResponse({"error": why}, 403)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _why_not(self, headers: list[tuple[bytes, bytes]]) -> str | None:
        hosts: list[bytes] = []
        for name, value in headers:
            if name == b"origin" or (name == b"sec-fetch-site" and value in _ELSEWHERE):
                return _PAGE
            if name == b"host":
                hosts.append(value)
        if self._named and not (hosts and all(map(_calls_loopback, hosts))):
            return _NAME
        return None


def _calls_loopback(host: bytes) -> bool:
    """A loopback name with any port, or none."""
    name, colon, port = host.decode("latin-1").rpartition(":")
    if not colon or port.endswith("]"):  # no port, or the colon is part of an IPv6 address
        name, port = f"{name}{colon}{port}", "0"
    if name.startswith("["):
        name = name[1:-1] if name.endswith("]") else ""
    elif ":" in name:
        return False
    return port.isdecimal() and is_loopback(name.lower())
