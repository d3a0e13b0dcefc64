"""Sandbox protocol, client side: decodes the replies and events of the sandbox server, and maps its errors."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import httpx2
import msgspec
from msgspec import Meta, Struct

from antwort.containers.sandboxes.port import (
    ExecutionResult,
    ExecutionStatus,
    Output,
    RefusalReason,
    SandboxAuthError,
    SandboxError,
    SandboxFile,
    SandboxProtocolError,
    SandboxRefused,
    SandboxUnavailable,
)
from antwort.net.errors import EventTooLong
from antwort.net.sse import ServerEvent

_logger = logging.getLogger(__name__)

T = TypeVar("T")
Size: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 53)]

_MAX_ERROR_BYTES: Final = 64 * 1024
_MAX_MESSAGE: Final = 2_000
_MAX_TIME: Final = 9.2e9
_ALIVE_STATUSES: Final[dict[str, ExecutionStatus]] = {
    "success": "ok",
    "error": "error",
    "exit": "exit",
    "interrupted": "interrupted",
    "timeout": "timeout",
}


class ListedFile(Struct):
    """An entry of a directory listing, and the reply to `PUT /files`."""

    path: str
    kind: str
    size: Size
    modified: float

    def as_file(self) -> SandboxFile:
        """The file; a time that code has set far away is limited to what nanoseconds in 64 bits can hold."""
        seconds = min(max(self.modified, -_MAX_TIME), _MAX_TIME)
        return SandboxFile(self.path, self.size, round(seconds * 1e9))


class FileListing(Struct):
    """Reply to `GET /files`."""

    files: list[ListedFile]
    has_more: bool = False


class SessionCreated(Struct):
    """Reply to `POST /sessions`."""

    id: str


class SessionListing(Struct):
    """Reply to `GET /sessions`."""

    sessions: list[msgspec.Raw]


class SandboxHealth(Struct):
    """Reply to `GET /health`. Base protocol: `status`, `mode`, `current_load`; `antwort sandbox` adds the others."""

    status: str
    mode: str
    current_load: int = 0
    sessions: int = 0
    used: bool = False

    @property
    def is_used(self) -> bool:
        """Whether a container or an execution uses the server, or, at a server for a single use, has used it."""
        return self.used or self.sessions > 0 or self.current_load > 0


class ErrorBody(Struct):
    """The body of an error, and the data of an `error` event. `detail` is that of routers and of some servers."""

    error: str = ""
    detail: Any = None

    @property
    def message(self) -> str:
        return self.error or (self.detail if isinstance(self.detail, str) else "")


class ErrorReply(Exception):
    """A reply with an error status."""

    def __init__(self, status: int, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after

    def as_sandbox_error(self, why: RefusalReason) -> SandboxError:
        """The error for the caller, where the session itself exists."""
        match self.status:
            case HTTPStatus.NOT_FOUND:
                return SandboxRefused(self.message, "missing")
            case HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                return SandboxRefused(self.message, "size")
            case HTTPStatus.BAD_REQUEST | HTTPStatus.UNPROCESSABLE_ENTITY:
                return SandboxRefused(self.message, why)
            case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
                _logger.error("the sandbox server rejects the token")
                return SandboxAuthError("The sandbox server rejects the token.")
            case _:
                _logger.warning("the sandbox server answered %d", self.status)
                return SandboxUnavailable(self.message)


def decode(body: bytes, kind: type[T]) -> T:
    """A reply of the sandbox server; `SandboxProtocolError` for a malformed one."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:  # RecursionError: nested too deeply
        raise SandboxProtocolError("The sandbox server sent a malformed reply.") from error


def decode_event(event: ServerEvent) -> Output | ExecutionResult:
    """An event of an execution; `SandboxUnavailable` for an `error` event."""
    match event.name:
        case "output":
            return decode(event.data, Output)
        case "result":
            return _decode_result(event.data)
        case _:
            raise SandboxUnavailable(decode(event.data, ErrorBody).message)


def _decode_result(body: bytes) -> ExecutionResult:
    """The `result` event of an execution. A status other than those of a living sandbox means that it has ended."""
    report = decode(body, dict[str, Any])
    status, reason = str(report.get("status")), report.get("reason")
    report |= {
        "status": _ALIVE_STATUSES.get(status, "oom" if reason == "oom" else "ended"),
        "sandbox_alive": status in _ALIVE_STATUSES and reason is None,
        "sandbox_replaced": False,  # set by `Containers`, not by the sandbox server…
        "files": (),  # …as this is
        "keeps_variables": True,
        "text_files": (),
        "notes": (),
    }
    try:
        return msgspec.convert(report, ExecutionResult)
    except msgspec.ValidationError as error:
        raise SandboxProtocolError("The sandbox server sent a malformed reply.") from error


async def read_body(reply: httpx2.Response, limit: int) -> bytes:
    """The body of a reply; `EventTooLong` past the limit."""
    body = bytearray()
    async for chunk in reply.aiter_raw():
        body += chunk
        if len(body) > limit:
            raise EventTooLong
    return bytes(body)


async def read_error(reply: httpx2.Response, *, is_routed: bool = False) -> ErrorReply | SandboxUnavailable:
    """The error of a reply, and the seconds of its `Retry-After`. `is_routed`: it came through a router."""
    try:
        body = msgspec.json.decode(await read_body(reply, _MAX_ERROR_BYTES), type=ErrorBody)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, EventTooLong):
        body = ErrorBody()
    try:
        retry_after = max(0.1, float(reply.headers.get("retry-after", "1")))
    except ValueError:
        retry_after = 1.0
    message = body.message[:_MAX_MESSAGE] or f"The sandbox server answered {reply.status_code}."
    if is_routed and not body.error and (error := _router_error(reply.status_code, message)) is not None:
        return error
    return ErrorReply(reply.status_code, message, retry_after)


def _router_error(status: int, message: str) -> SandboxUnavailable | None:
    """The error of the router itself, which answers `{"detail": …}`; None for a status that a sandbox server sends."""
    match status:
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
            return SandboxAuthError(f"The sandbox router rejects the request: {message}")
        case HTTPStatus.BAD_REQUEST:
            return SandboxUnavailable(f"The sandbox router rejects the request: {message}")
        case _ if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return SandboxProtocolError(f"The sandbox router answered {status}: {message}")
        case _:
            return None
