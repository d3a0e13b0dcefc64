"""API errors: OpenAI's error envelope, and the mapping from validation errors to it.

ApiError
  status 4xx   invalid_request_error   the caller must fix the request (401: missing or invalid key)
  status 429   rate_limit_error        retry later
  status 5xx   server_error            failure of the server
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec
from msgspec import Struct

# msgspec ends its messages with the JSON path: "Expected `int`, got `str` - at `$.input[0].role`". It does not name the
# keys of a mapping: "… - at `key` in `$.metadata`", "… - at `$.metadata[...]`".
_ERROR_RE = re.compile(r"^(?P<reason>.*?)(?: - at (?:`key` in )?`(?P<path>\$[^`]*)`)?$", re.DOTALL)
_MISSING_FIELD_RE = re.compile(r"Object missing required field `(?P<name>[^`]+)`")
_UNKNOWN_FIELD_RE = re.compile(r"Object contains unknown field `(?P<name>[^`]+)`")
_BOUND_RE = re.compile(r"Expected `(?:int|float)` (?P<sign>[<>]=?) (?P<bound>-?[\d.]+)")
_TYPE_RE = re.compile(r"Expected `[^`]*`(?:, got `[^`]*`)?")
_MAX_LENGTH = 200


class ErrorDetail(Struct, kw_only=True):
    """The error; `param` is the path of the invalid field."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorEnvelope(Struct, kw_only=True):
    """The body of every error response."""

    error: ErrorDetail


class ApiError(Exception):
    """An error response: the status, the fields of the envelope, and retry hints."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
        should_retry: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.code = code
        self.param = param
        self.retry_after = retry_after
        self.should_retry = should_retry

    def envelope(self) -> ErrorEnvelope:
        """The response body."""
        return ErrorEnvelope(error=ErrorDetail(message=self.message, type=self.kind, param=self.param, code=self.code))

    def headers(self) -> dict[str, str]:
        """Retry headers, which SDKs evaluate."""
        headers: dict[str, str] = {}
        if self.retry_after is not None:
            headers["retry-after"] = str(max(1, self.retry_after))
        if self.should_retry is not None:
            headers["x-should-retry"] = "true" if self.should_retry else "false"
        return headers


def invalid(message: str, *, param: str | None = None, code: str | None = "invalid_value") -> ApiError:
    """400: a parameter of the request is invalid."""
    return ApiError(400, message, code=code, param=param)


def missing_parameter(param: str) -> ApiError:
    """400: the request lacks a required parameter."""
    return invalid(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")


def unsupported_value(value: str, supported: Iterable[str], param: str) -> ApiError:
    """400: a parameter has none of the supported values."""
    named = f"Invalid value: '{value[:_MAX_LENGTH]}'."
    return invalid(f"{named} Supported values are: {', '.join(map(repr, supported))}.", param=param)


def unavailable_item(kind: str, available: Iterable[str], param: str) -> ApiError:
    """400: an input item of OpenAI's API that this server does not implement."""
    message = f"Input items of type '{kind}' are not available on this server."
    return invalid(f"{message} Available types are: {', '.join(map(repr, available))}.", param=param)


def not_found(what: str, identifier: str, *, param: str | None = None) -> ApiError:
    """404: the object does not exist, or belongs to another tenant, which the response does not reveal."""
    return ApiError(404, f"{what} with id '{identifier}' not found.", code="not_found", param=param)


def unavailable(message: str, *, retry_after: int | None = None, should_retry: bool | None = None) -> ApiError:
    """503: a temporary failure of the server."""
    return ApiError(
        503, message, kind="server_error", code="unavailable", retry_after=retry_after, should_retry=should_retry
    )


def internal() -> ApiError:
    """500: a failure of the server. Details are in the log only."""
    message = "The server had an error while processing your request."
    return ApiError(500, message, kind="server_error", code="server_error")


def malformed(error: msgspec.MsgspecError, *, root: str = "") -> ApiError:
    """400 for a msgspec validation error, with the path of the invalid field as `param`."""
    if not isinstance(error, msgspec.ValidationError):
        return invalid(f"We could not parse the JSON body of your request: {error}", code="invalid_json")
    found = _ERROR_RE.match(str(error))
    reason, path = (found["reason"], found["path"] or "$") if found else (str(error), "$")
    param = (root + path.removeprefix("$").partition("[...]")[0]).lstrip(".")
    if missing := _MISSING_FIELD_RE.search(reason):
        param = _join(param, missing["name"])
        return missing_parameter(param)
    if unknown := _UNKNOWN_FIELD_RE.search(reason):
        param = _join(param, unknown["name"])[:_MAX_LENGTH]
        return invalid(f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")
    message = f"Invalid value for '{param or 'body'}': {reason[:_MAX_LENGTH]}."
    return invalid(message, param=param or None, code=_code(reason))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _code(reason: str) -> str:
    if bound := _BOUND_RE.search(reason):
        return "integer_above_max_value" if bound["sign"].startswith("<") else "integer_below_min_value"
    return "invalid_type" if _TYPE_RE.fullmatch(reason) else "invalid_value"
