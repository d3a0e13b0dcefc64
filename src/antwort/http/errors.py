"""Every error as OpenAI's envelope, whoever raised it. What is nobody's business is logged, and a plain 500."""

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
_UNREAD = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


def answer(error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
    """The answer that tells of an error. Where the rest of a body would still come, nobody listens any more."""
    close = {"connection": "close"} if error.status in _UNREAD else {}
    return Response(
        msgspec.json.encode(error.envelope()),
        error.status,
        {**(headers or {}), **error.headers(), **close},
        media_type="application/json",
    )


def explained(error: Exception) -> ApiError:  # noqa: PLR0911 - one line for each kind of error
    """What the caller is told of an error."""
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
            return of_fault(error)
        case SandboxError():
            return of_sandbox(error)
        case HTTPException():
            return of_status(error.status_code)
        case _:
            log.error("unexpected_error", exc_info=error)
            return internal()


def of_status(status: int) -> ApiError:
    """What the router found out: a path or a method that is not there."""
    if status == HTTPStatus.NOT_FOUND:
        return ApiError(404, "Invalid URL: there is nothing at this path.", code="unknown_url")
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        return ApiError(405, "This path does not take this method.", code="method_not_supported")
    return ApiError(status, HTTPStatus(status).phrase + ".")


def of_fault(fault: ModelFault) -> ApiError:
    """A model that failed, as the answer to the request that asked it."""
    return ApiError(
        fault.status,
        fault.message,
        kind=fault.kind,
        code=fault.code,
        retry_after=fault.retry_after,
        should_retry=None if fault.kind == "invalid_request_error" else fault.retryable,
    )


def of_sandbox(trouble: SandboxError) -> ApiError:
    """A sandbox that could not do what a container needed."""
    match trouble:
        case SandboxRefused(why="missing"):
            return ApiError(404, str(trouble), code="not_found")
        case SandboxRefused():
            return invalid(str(trouble), param=_PARAMS.get(trouble.why), code=_CODES.get(trouble.why, "invalid_value"))
        case SandboxLost():
            log.warning("sandbox_lost", exc_info=trouble)
            message = f"{trouble} What was in the container is gone; it gets a new sandbox with its next use."
            return ApiError(503, message, kind="server_error", code="container_lost", retry_after=1)
        case _:
            log.warning("sandbox_fault", exc_info=trouble)
            return unavailable(str(trouble), retry_after=2)


def router_error(request: Request, error: Exception) -> Response:
    """Starlette's own errors, in our envelope. It asks one route at a time, so it cannot say all that a path takes."""
    headers = error.headers if isinstance(error, HTTPException) else None
    if isinstance(error, HTTPException) and error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers = {"allow": ", ".join(sorted(_methods(request)))}
    return answer(explained(error), headers)


def _methods(request: Request) -> set[str]:
    """What can be done at the path of this request: by all routes that are as near to it as the nearest."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    nearest = next((route.path for route in routes if route.matches(request.scope)[0] is not Match.NONE), None)
    return {method for route in routes if route.path == nearest for method in route.methods or ()}
