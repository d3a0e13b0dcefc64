"""Runs uvicorn with connection limits on the listening sockets until SIGINT or SIGTERM."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Final

import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from antwort.net.connections import ConnectionLimiter, OverloadMiddleware

from .address import Address

_SHUTDOWN_SECONDS: Final = 5
_EXIT_NOT_STARTED: Final = 3


def serve(app: ASGIApp, address: Address, max_connections: int) -> None:
    """Serve until a signal has ended the server gracefully."""
    overloaded = JSONResponse({"error": "too many concurrent requests"}, 503, {"Retry-After": "1"})
    config = uvicorn.Config(
        OverloadMiddleware(app, overloaded, exempt={"/health"}),
        loop="uvloop",
        http=ConnectionLimiter(max_connections).protocol,
        ws="none",
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # callers are identified by the token, not by a header
        server_header=False,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,  # a client that never reads must not prevent the shutdown
    )
    server = _Server(config)
    server.run(sockets=address.sockets)
    if not server.started:
        sys.exit(_EXIT_NOT_STARTED)


class _Server(uvicorn.Server):
    """Uvicorn without raising the signal again after the shutdown, because the socket file has to be removed."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; a second SIGINT exits at once."""
        if self.should_exit:
            self.force_exit = self.force_exit or sig == signal.SIGINT
        self.should_exit = True
        del frame
