"""Errors of the Messages wire: which requests are of this wire, and their statuses, types, texts and headers. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec
from starlette.requests import Request

from antwort.api.errors import ApiError, invalid
from antwort.http.wires.messages.events import ErrorInfo, MessagesApiError

VERSION_HEADER: Final = b"anthropic-version"
_MESSAGES: Final = "/v1/messages"
_SHARED_PATHS: Final = ("/v1/models", "/v1/files")
"""Paths of both APIs: there the header decides."""

_OVERLOADED: Final = 529
_KINDS: Final = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    _OVERLOADED: "overloaded_error",
}
_RETRIED: Final = frozenset({408, 409, 429})
_INTERNAL, _NOT_FOUND, _PAYMENT_REQUIRED, _BAD_REQUEST = 500, 404, 402, 400
_STATUSES: Final = {503: _OVERLOADED, 502: _INTERNAL, 424: _BAD_REQUEST}
"""Statuses that this wire has other ones for."""
_CODE_STATUSES: Final = {"model_not_found": _NOT_FOUND, "insufficient_quota": _PAYMENT_REQUIRED}

_INDEX_RE: Final = re.compile(r"\[(\d+)\]")
_TAG_RE: Final = re.compile("Invalid value '(.*)'", re.DOTALL)
_NUMBER_RE: Final = re.compile(r"\d[\d,]*")
_LIMIT_RE: Final = re.compile(r"(?:context (?:length|window|size)|maximum)[^\d]{0,60}(\d[\d,]*)", re.IGNORECASE)
_MIN_TOKENS: Final = 256
"""Smaller numbers in a message are no token counts."""


class ErrorAnswer(NamedTuple):
    """An error as an answer."""

    status: int
    body: bytes
    headers: dict[str, str]


def is_messages_request(path: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a request is of this wire: by its path, and for shared paths by its header."""
    if path.startswith(_MESSAGES):
        return path == _MESSAGES or path[len(_MESSAGES)] == "/"
    shared = next((one for one in _SHARED_PATHS if path.startswith(one)), None)
    if shared is None or path[len(shared) : len(shared) + 1] not in ("", "/"):
        return False
    return any(name == VERSION_HEADER for name, _ in headers)


def speaks_messages(request: Request) -> bool:
    """The same of a request that has a handler."""
    return is_messages_request(request.scope["path"], request.scope["headers"])


def error_answer(error: ApiError, request_id: str) -> ErrorAnswer:
    """The error as the answer to a request. Clients retry most statuses, unless `x-should-retry` is false."""
    status = status_of(error)
    body = msgspec.json.encode(MessagesApiError(ErrorInfo(_kind(status), _message(error)), request_id))
    headers = error.headers()
    if error.should_retry is None and status < _INTERNAL and status not in _RETRIED:
        headers["x-should-retry"] = "false"
    return ErrorAnswer(status, body, headers)


def error_event(error: ApiError) -> MessagesApiError:
    """The error as the last event of a stream."""
    return MessagesApiError(ErrorInfo(_kind(status_of(error)), _message(error)))


def status_of(error: ApiError) -> int:
    """The status of this wire."""
    return _CODE_STATUSES.get(error.code or "") or _STATUSES.get(error.status, error.status)


def _kind(status: int) -> str:
    return _KINDS.get(status) or ("api_error" if status >= _INTERNAL else "invalid_request_error")


def _message(error: ApiError) -> str:
    """The message, which begins with the path of the field."""
    if error.param is None or error.message.startswith(error.param) or error.code == "model_not_found":
        return error.message
    return f"{error.param}: {error.message}"


def prompt_too_long(error: ApiError, *, estimated: int, window: int | None) -> ApiError:
    """The error for a prompt that exceeds the context window. Clients compact their history when they read this text.

    The numbers are those of the upstream's message where it has any. `estimated` are the tokens of the prompt.
    """
    numbers = [int(found.replace(",", "")) for found in _NUMBER_RE.findall(error.message)[:20] if len(found) < 12]  # noqa: PLR2004 - no token count has so many digits
    named = _LIMIT_RE.search(error.message)
    limit = window or (int(named[1].replace(",", "")) if named and len(named[1]) < 12 else 0)  # noqa: PLR2004 - the same
    if limit < _MIN_TOKENS:
        return ApiError(_BAD_REQUEST, f"prompt is too long: about {estimated} tokens", code=error.code)
    tokens = max([limit + 1, *(number for number in numbers if limit < number)] if numbers else [limit + 1, estimated])
    return ApiError(_BAD_REQUEST, f"prompt is too long: {tokens} tokens > {limit} maximum", code=error.code)


def in_api_words(error: ApiError) -> ApiError:
    """An error about the type of a value, with dots in its path; common ones in the words of Anthropic's API."""
    if error.param is None:
        return error
    path = _dotted(error.param)
    if error.code == "missing_required_parameter":
        return invalid("Field required", param=path, code=error.code)
    if path.startswith("messages.") and path.endswith(".type") and (tag := _TAG_RE.search(error.message)):
        message = f"Input tag '{tag[1]}' found using 'type' is not one of those that this server reads here."
        return invalid(message, param=path.removesuffix(".type"))
    message = error.message.removeprefix(f"Invalid '{error.param}': ").replace(f" for '{error.param}'", "", 1)
    return invalid(message.replace(error.param, path), param=path, code=error.code)


def _dotted(path: str) -> str:
    """A path with dots: `messages.0.content` for `messages[0].content`."""
    return _INDEX_RE.sub(r".\1", path)
