"""Maps every exception to the error envelope of its wire; unexpected ones are logged and become a plain 500."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from urllib.parse import quote

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from antwort.api.errors import ApiError, ErrorCode, internal, invalid, unavailable
from antwort.containers.sandboxes.port import SandboxError, SandboxLost, SandboxRefused
from antwort.engine.ports import ModelFault
from antwort.engine.stores import ContentFault, ResponseNotStored, ResponseTakenOver, StoreFault, UnknownCursor
from antwort.http.wires.messages.errors import error_answer, is_messages_request
from antwort.telemetry import log

_PARAMS = {"tier": "memory_limit", "path": "file", "size": "file"}
_CODES: dict[str, ErrorCode] = {"size": "container_full"}
_MAX_PATH_LENGTH = 200
_MAX_LOGGED_PARAM = 100
_NO_WEBSOCKET = ApiError(
    426,
    "This server has no WebSocket here: send the request over HTTP, as a POST to this path, with `stream` for events.",
    code="websocket_not_supported",
)
"""Clients such as Codex change to HTTP after this status, and repeat the request after another one."""
_BODY_UNREAD = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


def error_response(error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
    """The error as a response. It closes the connection where the rest of the request body has not been read."""
    return Response(
        msgspec.json.encode(error.envelope()),
        error.status,
        {**(headers or {}), **error.headers(), **_closing(error.status)},
        media_type="application/json",
    )


def _closing(status: int) -> dict[str, str]:
    return {"connection": "close"} if status in _BODY_UNREAD else {}


def to_api_error(error: Exception) -> ApiError:  # noqa: PLR0911 - one line for each kind of error
    """The `ApiError` that reports an exception to the caller."""
    match error:
        case ApiError():
            return error
        case ResponseNotStored():
            log.warning("store_fault", exc_info=error)
            return unavailable(str(error), should_retry=False)  # a retry would do the work twice
        case ResponseTakenOver():
            log.warning("response_taken_over", exc_info=error)
            return unavailable(f"{error} Retrieve it by its id.", retry_after=1)
        case ContentFault():
            log.warning("store_fault", exc_info=error)
            return unavailable("The store of file contents is not available. Try again later.", retry_after=2)
        case StoreFault():
            log.warning("store_fault", reason=str(error), exc_info=error)
            return unavailable("The server cannot store anything right now. Try again later.", retry_after=2)
        case UnknownCursor():
            return invalid(str(error), param=error.param)
        case ModelFault():
            return from_model_fault(error)
        case SandboxError():
            return from_sandbox_error(error)
        case HTTPException():
            return ApiError(error.status_code, HTTPStatus(error.status_code).phrase + ".")
        case _:
            log.error("unexpected_error", exc_info=error)
            return internal()


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
    """Starlette's own errors in the envelope: an unknown path, an unsupported method."""
    status = error.status_code if isinstance(error, HTTPException) else None
    headers = error.headers if isinstance(error, HTTPException) else None
    if status == HTTPStatus.NOT_FOUND:
        api_error = _unknown_url(request)
    elif status == HTTPStatus.METHOD_NOT_ALLOWED and request.headers.get("upgrade", "").lower() == "websocket":
        api_error, headers = _NO_WEBSOCKET, {"upgrade": "HTTP/1.1", "connection": "upgrade"}
    elif status == HTTPStatus.METHOD_NOT_ALLOWED:
        methods = ", ".join(sorted(_allowed_methods(request)))  # Starlette lists the methods of one route
        message = f"{_describe(request)}: this path supports only {methods}."
        api_error, headers = ApiError(405, message, code="method_not_supported"), {"allow": methods}
    else:
        api_error = to_api_error(error)
    return record_error(request.scope, api_error, headers)


def record_error(scope: Scope, error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
    """The error as the response to a request, in the format of its wire, recorded for the access log."""
    scope["antwort.error"] = error
    if not is_messages_request(scope["path"], scope["headers"]):
        return error_response(error, headers)
    answer = error_answer(error, scope.get("antwort.request_id", ""))
    sent = {**(headers or {}), **answer.headers, **_closing(error.status)}
    return Response(answer.body, answer.status, sent, media_type="application/json")


def log_fields(error: ApiError | None) -> dict[str, str | None]:
    """The fields of an error in the access log."""
    return {} if error is None else {"code": error.code, "param": _printable(error.param)}


def _printable(param: str | None) -> str | None:
    """A parameter for the log. It can be the caller's text: without line breaks, and not too long."""
    return None if param is None else ascii(param)[1:-1][:_MAX_LOGGED_PARAM]


def _describe(request: Request) -> str:
    path = request.scope["path"][:_MAX_PATH_LENGTH]
    return f"Invalid URL ({request.method} {quote(path)})"


def _unknown_url(request: Request) -> ApiError:
    """404. Most of them have a wrong base URL: without `/v1`, with two of them, or with a path before it."""
    segments = [segment for segment in request.scope["path"].split("/") if segment]
    versions = [index for index, segment in enumerate(segments) if segment == "v1"]
    path = "/".join(["/v1", *(segments[versions[-1] + 1 :] if versions else segments)])
    if path != request.scope["path"] and any(_routes_at(request, path)):
        meant = f"Did you mean {quote(path[:_MAX_PATH_LENGTH])}?"
        cure = "Set base_url to the address of this server followed by one '/v1', such as http://127.0.0.1:8080/v1."
        message = f"{_describe(request)}. {meant} {cure}"
    elif versions:
        message = f"{_describe(request)}: there is nothing at this path."
    else:
        message = f"{_describe(request)}: there is nothing at this path. The paths of the API begin with '/v1'."
    return ApiError(404, message, code="unknown_url")


def _allowed_methods(request: Request) -> set[str]:
    """The methods of all routes that have the same path as the first one that matches."""
    routes = [*_routes_at(request, request.scope["path"])]
    return {method for route in routes if route.path == routes[0].path for method in route.methods or ()}


def _routes_at(request: Request, path: str) -> Iterator[Route]:
    """The routes that match a path, with any method."""
    scope = {**request.scope, "path": path}
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE:
            yield route
