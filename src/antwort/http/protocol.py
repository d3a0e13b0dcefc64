"""Connection limits of the server: `ConnectionLimiter` with the configured limits and OpenAI's error envelope."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from antwort.api.errors import ApiError, ErrorCode
from antwort.api.ids import new_id
from antwort.config import ServerSettings
from antwort.http.bodies import too_large
from antwort.http.wires.websocket.messages import PATH, error_message
from antwort.net import websocket
from antwort.net.connections import ERROR_MESSAGES, ConnectionLimiter, render_response
from antwort.net.websocket import LimitedWebSocket

_CODES: dict[HTTPStatus, ErrorCode] = {
    HTTPStatus.BAD_REQUEST: "invalid_http",
    HTTPStatus.REQUEST_TIMEOUT: "timeout",
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "headers_too_large",
}


def connection_limiter(settings: ServerSettings) -> ConnectionLimiter:
    """The limiter for these settings; its `protocol` is the class for uvicorn."""
    return ConnectionLimiter(
        settings.max_connections,
        max_head=settings.max_head,
        head_timeout=settings.head_timeout,
        stall_timeout=settings.stall_timeout,
        render_error=_render_envelope,
        websocket_paths=[PATH.encode()],
    )


def websocket_protocol(limiter: ConnectionLimiter, settings: ServerSettings) -> type[LimitedWebSocket]:
    """The class of WebSockets for uvicorn."""
    return websocket.websocket_protocol(
        limiter,
        message_timeout=settings.body_timeout,
        oversize_message=error_message(too_large(settings.max_body)),
    )


def _render_envelope(status: HTTPStatus) -> bytes:
    error = ApiError(status, ERROR_MESSAGES[status], code=_CODES[status])
    return render_response(status, msgspec.json.encode(error.envelope()), f"x-request-id: {new_id('req_')}\r\n")
