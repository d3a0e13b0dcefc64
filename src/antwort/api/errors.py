"""Errors as the wire has them: one envelope, and whose fault it is.

ApiError
  status 4xx   invalid_request_error   the caller's: fix the request (401: no key, or a wrong one)
  status 429   rate_limit_error        later
  status 5xx   server_error            ours
"""

from __future__ import annotations

import re

import msgspec
from msgspec import Struct

# msgspec ends its messages with where it was: "Expected `int`, got `str` - at `$.input[0].role`". The keys of a mapping
# it does not name: "… - at `key` in `$.metadata`", "… - at `$.metadata[...]`".
_ERROR_RE = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`(?P<path>\$[^`]*)`)?$", re.DOTALL)
_MISSING_FIELD_RE = re.compile(r"Object missing required field `(?P<name>[^`]+)`")
_UNKNOWN_FIELD_RE = re.compile(r"Object contains unknown field `(?P<name>[^`]+)`")
_BOUND_RE = re.compile(r"Expected `(?:int|float)` (?P<sign>[<>]=?) (?P<bound>-?[\d.]+)")
_TYPE_RE = re.compile(r"Expected `[^`]*`(?:, got `[^`]*`)?")
_MAX_LENGTH = 200


class ErrorDetail(Struct, kw_only=True):
    """What is wrong; `param` is the path of the field that is."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorEnvelope(Struct, kw_only=True):
    """The body of every answer that is an error."""

    error: ErrorDetail


class ApiError(Exception):
    """A request that is answered with an error. Says the status, and what goes into the envelope."""

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
        """The body."""
        return ErrorEnvelope(error=ErrorDetail(message=self.message, type=self.kind, param=self.param, code=self.code))

    def headers(self) -> dict[str, str]:
        """What an SDK decides by whether to try again."""
        headers: dict[str, str] = {}
        if self.retry_after is not None:
            headers["retry-after"] = str(max(1, self.retry_after))
        if self.should_retry is not None:
            headers["x-should-retry"] = "true" if self.should_retry else "false"
        return headers


def invalid(message: str, *, param: str | None = None, code: str | None = "invalid_value") -> ApiError:
    """400: the request says something that cannot be."""
    return ApiError(400, message, code=code, param=param)


def not_found(what: str, identifier: str, *, param: str | None = None) -> ApiError:
    """404: it does not exist, or it is not the caller's, which is none of the caller's business."""
    return ApiError(404, f"{what} with id '{identifier}' not found.", code="not_found", param=param)


def unavailable(message: str, *, retry_after: int | None = None, should_retry: bool | None = None) -> ApiError:
    """503: ours, and it may pass."""
    return ApiError(
        503, message, kind="server_error", code="unavailable", retry_after=retry_after, should_retry=should_retry
    )


def internal() -> ApiError:
    """500: ours. What exactly is in the log, never in the answer."""
    return ApiError(
        500, "The server had an error while processing your request.", kind="server_error", code="server_error"
    )


def malformed(error: msgspec.MsgspecError, *, root: str = "") -> ApiError:
    """400 for what msgspec refused, with the path of the wrong field as `param`."""
    if not isinstance(error, msgspec.ValidationError):
        return invalid(f"We could not parse the JSON body of your request: {error}", code="invalid_json")
    found = _ERROR_RE.match(str(error))
    what, where = (found["what"], found["path"] or "$") if found else (str(error), "$")
    param = (root + where.removeprefix("$").partition("[...]")[0]).lstrip(".")
    if missing := _MISSING_FIELD_RE.search(what):
        param = _join(param, missing["name"])
        return invalid(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")
    if unknown := _UNKNOWN_FIELD_RE.search(what):
        param = _join(param, unknown["name"])[:_MAX_LENGTH]
        return invalid(f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")
    return invalid(
        f"Invalid value for '{param or 'body'}': {what[:_MAX_LENGTH]}.", param=param or None, code=_code(what)
    )


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _code(what: str) -> str:
    if bound := _BOUND_RE.search(what):
        return "integer_above_max_value" if bound["sign"].startswith("<") else "integer_below_min_value"
    return "invalid_type" if _TYPE_RE.fullmatch(what) else "invalid_value"
