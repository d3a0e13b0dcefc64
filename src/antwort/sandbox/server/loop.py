"""The loop: uvicorn on our sockets, until it is told to stop."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from .address import Address
from .connections import ConnectionLimiter, OverloadMiddleware

_SHUTDOWN_SECONDS: Final = 5
_NOT_STARTED: Final = 3


def serve(app: ASGIApp, address: Address, most_connections: int) -> None:
    """Answer requests; returns when a signal has ended that in good order."""
    lobby = ConnectionLimiter(most_connections)
    config = uvicorn.Config(
        OverloadMiddleware(app, lobby),
        loop="uvloop",
        http=lobby.protocol(),
        ws="none",
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # who asks is told by the token, not by a header
        server_header=False,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,  # a client that never reads must not keep us from stopping
    )
    server = _Server(config)
    server.run(sockets=address.sockets)
    if not server.started:
        sys.exit(_NOT_STARTED)


class _Server(uvicorn.Server):
    """Uvicorn, which would raise the signal once more when all is over, and we have a socket to remove."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A second Ctrl-C ends at once."""
        if self.should_exit:
            self.force_exit = self.force_exit or sig == signal.SIGINT
        self.should_exit = True
        del frame
