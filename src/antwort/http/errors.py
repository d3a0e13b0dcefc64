"""Maps every exception to OpenAI's error envelope; unexpected ones are logged and become a plain 500."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from antwort.api.errors import ApiError, internal, invalid, unavailable
from antwort.containers.sandboxes.port import SandboxError, SandboxLost, SandboxRefused
from antwort.engine.ports import ModelFault
from antwort.engine.stores import ResponseNotStored, StoreFault, UnknownCursor
from antwort.telemetry import log

_PARAMS = {"tier": "memory_limit", "path": "file", "size": "file"}
_CODES = {"size": "container_full"}
_NO_WEBSOCKET = ApiError(
    426,
    "This server has no WebSocket: send the request over HTTP, as a POST to this path, with `stream` for events.",
    code="websocket_not_supported",
)
"""Clients such as Codex change to HTTP after this status, and repeat the request after another one."""
_BODY_UNREAD = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


def error_response(error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
    """The error as a response. It closes the connection where the rest of the request body has not been read."""
    close = {"connection": "close"} if error.status in _BODY_UNREAD else {}
    return Response(
        msgspec.json.encode(error.envelope()),
        error.status,
        {**(headers or {}), **error.headers(), **close},
        media_type="application/json",
    )


def to_api_error(error: Exception) -> ApiError:  # noqa: PLR0911 - one line for each kind of error
    """The `ApiError` that reports an exception to the caller."""
    match error:
        case ApiError():
            return error
        case ResponseNotStored():
            log.warning("store_fault", exc_info=error)
            return unavailable(str(error), should_retry=False)  # a retry would do the work twice
        case StoreFault():
            log.warning("store_fault", exc_info=error)
            return unavailable("The server cannot store anything right now. Try again later.", retry_after=2)
        case UnknownCursor():
            return invalid(str(error), param=error.param)
        case ModelFault():
            return from_model_fault(error)
        case SandboxError():
            return from_sandbox_error(error)
        case HTTPException():
            return _from_status(error.status_code)
        case _:
            log.error("unexpected_error", exc_info=error)
            return internal()


def _from_status(status: int) -> ApiError:
    """The router's errors: unknown path, unsupported method."""
    if status == HTTPStatus.NOT_FOUND:
        return ApiError(404, "Invalid URL: there is nothing at this path.", code="unknown_url")
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        return ApiError(405, "This path does not support this method.", code="method_not_supported")
    return ApiError(status, HTTPStatus(status).phrase + ".")


def from_model_fault(fault: ModelFault) -> ApiError:
    """A model's failure as the error of the request that called the model."""
    return ApiError(
        fault.status,
        fault.message,
        kind=fault.kind,
        code=fault.code,
        retry_after=fault.retry_after,
        should_retry=None if fault.kind == "invalid_request_error" else fault.retryable,
    )


def from_sandbox_error(error: SandboxError) -> ApiError:
    """A sandbox's failure as the error of the request that needed it."""
    match error:
        case SandboxRefused(why="missing"):
            return ApiError(404, str(error), code="not_found")
        case SandboxRefused():
            return invalid(str(error), param=_PARAMS.get(error.why), code=_CODES.get(error.why, "invalid_value"))
        case SandboxLost():
            log.warning("sandbox_lost", exc_info=error)
            message = f"{error} The container's files and state are lost; its next use starts a new sandbox."
            return ApiError(503, message, kind="server_error", code="container_lost", retry_after=1)
        case _:
            log.warning("sandbox_fault", exc_info=error)
            return unavailable(str(error), retry_after=2)


def router_error(request: Request, error: Exception) -> Response:
    """Starlette's own errors in the envelope. `Allow` is computed here: Starlette lists the methods of one route."""
    headers = error.headers if isinstance(error, HTTPException) else None
    if isinstance(error, HTTPException) and error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        if request.headers.get("upgrade", "").lower() == "websocket":
            return error_response(_NO_WEBSOCKET, {"upgrade": "HTTP/1.1", "connection": "upgrade"})
        headers = {"allow": ", ".join(sorted(_allowed_methods(request)))}
    return error_response(to_api_error(error), headers)


def _allowed_methods(request: Request) -> set[str]:
    """The methods of all routes that have the same path as the first one that matches."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    path = next((route.path for route in routes if route.matches(request.scope)[0] is not Match.NONE), None)
    return {method for route in routes if route.path == path for method in route.methods or ()}
