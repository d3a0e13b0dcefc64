"""API errors: OpenAI's error envelope, the list of error codes, and the mapping from validation errors to both.

ApiError
  status 4xx   invalid_request_error   the caller must fix the request (401: missing or invalid key)
  status 424   external_connector_error   an MCP server does not list its tools
  status 429   rate_limit_error        retry later
  status 5xx   server_error            failure of the server
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct

from antwort.api.tools import KNOWN_TOOL_TYPES, NAMESPACE_TOOL_TYPES

ResponseErrorCode: TypeAlias = Literal[
    # codes that OpenAI's SDKs declare for `response.error.code`
    "server_error",
    "rate_limit_exceeded",
    "invalid_prompt",
    # codes that they do not declare
    "compaction_too_large",
    "context_length_exceeded",
    "insufficient_quota",
    "invalid_encrypted_content",
    "model_not_found",
    "request_too_large",
    "tool_choice_not_followed",
]
"""Codes of a response that failed, also of its `error` event. docs/server.md describes them."""

ErrorCode: TypeAlias = Literal[
    ResponseErrorCode,
    "array_above_max_length",
    "container_full",
    "container_lost",
    "decimal_above_max_value",
    "decimal_below_min_value",
    "empty_array",
    "empty_string",
    "file_too_large",
    "forbidden",
    "headers_too_large",
    "integer_above_max_value",
    "integer_below_min_value",
    "invalid_api_key",
    "invalid_content_type",
    "invalid_form",
    "invalid_function_parameters",
    "invalid_http",
    "invalid_json",
    "invalid_json_schema",
    "invalid_stream_id",
    "invalid_type",
    "invalid_value",
    "http_error",
    "mcp_protocol_error",
    "method_not_supported",
    "missing_required_parameter",
    "mutually_exclusive_parameters",
    "not_found",
    "object_above_max_properties",
    "previous_response_not_found",
    "string_above_max_length",
    "timeout",
    "unavailable",
    "unknown_parameter",
    "unknown_url",
    "unsupported_file",
    "unsupported_parameter",
    "unsupported_value",
    "websocket_connection_limit_reached",
    "websocket_not_supported",
    "websocket_queue_full",
    "websocket_stream_limit_reached",
]
"""All codes of the error envelope. docs/server.md describes them."""

# msgspec ends its messages with the JSON path: "Expected `int`, got `str` - at `$.input[0].role`". It does not name the
# keys of a mapping: "… - at `key` in `$.metadata`", "… - at `$.metadata[...]`".
_PLACE = " - at "
_PLACE_RE = re.compile(rf"{_PLACE}(?P<key>`key` in )?`(?P<path>\$[^`]*)`")
_STEP_RE = re.compile(r"\.(?P<name>[^.\[\]]+)|\[(?P<index>\d+)\]")
_MISSING_FIELD_RE = re.compile(r"Object missing required field `(?P<name>[^`]+)`")
_UNKNOWN_FIELD_RE = re.compile(r"Object contains unknown field `(?P<name>[^`]+)")
_RANGE_RE = re.compile(r"Expected `(?P<type>int|float)` (?P<sign>[<>]=?) (?P<bound>-?[\d.]+)")
_LENGTH_RE = re.compile(r"Expected `(?P<type>str|array|object)` of length (?P<sign>[<>]=) (?P<bound>\d+)")
_PATTERN_RE = re.compile(r"Expected `str` matching regex (?P<pattern>'.*')", re.DOTALL)
_TYPE_RE = re.compile(r"Expected `(?P<expected>[^`]*)`(?:, got `(?P<given>[^`]*)`)?")
_VALUE_RE = re.compile(r"Invalid (?:enum )?value (?P<value>.+)", re.DOTALL)
_TOOL_TYPE_RE = re.compile(r"(?:^|\.)(?P<namespace>tools\[\d+\]\.)?tools\[\d+\]\.type$")
_MAX_LENGTH = 200
_MAX_REASON = 600
_MAX_PLACE = 4000  # a path of as many levels as a body may have
_MAX_NUMBER = 10**21

_TYPE_NAMES = {
    "int": "an integer",
    "float": "a decimal",
    "str": "a string",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
}
_LENGTH_ERRORS: dict[str, tuple[ErrorCode, str, str, str]] = {
    "str": ("string_above_max_length", "string too long", "a string with maximum length {}", "a string with length {}"),
    "array": ("array_above_max_length", "array too long", "an array with maximum length {}", "an array with length {}"),
    "object": (
        "object_above_max_properties",
        "too many properties",
        "an object with at most {} properties",
        "an object with {} properties",
    ),
}
_RANGE_CODES: dict[tuple[str, bool], ErrorCode] = {
    ("integer", True): "integer_above_max_value",
    ("integer", False): "integer_below_min_value",
    ("decimal", True): "decimal_above_max_value",
    ("decimal", False): "decimal_below_min_value",
}


class ErrorDetail(Struct, kw_only=True):
    """The error; `param` is the path of the invalid field."""

    message: str
    type: str
    param: str | None = None
    code: ErrorCode | None = None


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
        code: ErrorCode | None = None,
        param: str | None = None,
        retry_after: int | None = None,
        should_retry: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.code: ErrorCode | None = code
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


def invalid(message: str, *, param: str | None = None, code: ErrorCode | None = "invalid_value") -> ApiError:
    """400: a parameter of the request is invalid."""
    return ApiError(400, message, code=code, param=param)


def missing_parameter(param: str) -> ApiError:
    """400: the request lacks a required parameter."""
    return invalid(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")


def unsupported_value(value: str, supported: Iterable[str], param: str) -> ApiError:
    """400: a parameter has none of the supported values, which are listed where they are known."""
    listed = ", ".join(map(repr, supported))
    hint = f" Supported values are: {listed}." if listed else ""
    return invalid(f"Invalid value: '{value[:_MAX_LENGTH]}'.{hint}", param=param)


def out_of_range(
    param: str,
    value: object,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    kind: Literal["integer", "decimal"] = "integer",
) -> ApiError:
    """400: a number is above its maximum or, if there is none, below its minimum. `value` may be unknown."""
    is_above = maximum is not None
    which, sign = ("above maximum", "<=") if is_above else ("below minimum", ">=")
    bound = _format_number(maximum if is_above else minimum)
    given = _format_number(value)
    got = f", but got {given} instead" if given else ""
    message = f"Invalid '{param}': {kind} {which} value. Expected a value {sign} {bound}{got}."
    return invalid(message, param=param, code=_RANGE_CODES[kind, is_above])


def _format_number(value: object) -> str:
    """A number without a fraction of zero; nothing for what is no number, or has too many digits."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _MAX_NUMBER:
        return ""
    return str(int(value)) if value == int(value) else str(value)


def unavailable_item(kind: str, available: Iterable[str], param: str) -> ApiError:
    """400: an input item of OpenAI's API that this server does not implement."""
    message = f"Input items of type '{kind}' are not available on this server."
    return invalid(f"{message} Available types are: {', '.join(map(repr, available))}.", param=param)


def unavailable_tool(kind: str, available: Iterable[str], param: str) -> ApiError:
    """400: a tool type of OpenAI's API that this server does not have."""
    message = f"Tool type '{kind[:_MAX_LENGTH]}' is not available on this server."
    return invalid(f"{message} Available types: {', '.join(map(repr, available))}.", param=param)


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


def malformed(
    error: msgspec.MsgspecError, *, root: str = "", document: object = None, tool_types: Iterable[str] = ()
) -> ApiError:
    """400 for a msgspec validation error, with the path of the invalid field as `param`, in OpenAI's words.

    `document` is the validated value, which the message quotes numbers and lengths of; `tool_types` are the tool types
    that a request may declare.
    """
    if not isinstance(error, msgspec.ValidationError):
        return invalid(f"We could not parse the JSON body of your request: {error}", code="invalid_json")
    reason, place = _split(str(error))
    path = place["path"] if place else "$"
    param = (root + path.removeprefix("$").partition("[...]")[0]).lstrip(".")
    if missing := _MISSING_FIELD_RE.search(reason):
        return missing_parameter(_join(param, missing["name"]))
    if unknown := _UNKNOWN_FIELD_RE.search(reason):
        param = _join(param, unknown["name"])[:_MAX_LENGTH]
        return invalid(f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")
    is_exact = place is not None and not place["key"] and "[...]" not in path
    value = _value_at(document, path) if is_exact else None
    if (value_error := _VALUE_RE.fullmatch(reason)) and (tool := _TOOL_TYPE_RE.search(param)):
        kind = value_error["value"].strip("'")
        return _not_in_namespace(kind, param) if tool["namespace"] else unsupported_value(kind, tool_types, param)
    return _violation(reason, param, value)


def _split(message: str) -> tuple[str, re.Match[str] | None]:
    """The reason and the place of a message. It may quote a value of many megabytes, which no pattern must read."""
    at = message.rfind(_PLACE, max(0, len(message) - _MAX_PLACE))
    place = _PLACE_RE.fullmatch(message, at) if at >= 0 else None
    return message[: min(at, _MAX_REASON) if place else _MAX_REASON], place


def _not_in_namespace(kind: str, param: str) -> ApiError:
    if kind not in KNOWN_TOOL_TYPES:
        return unsupported_value(kind, NAMESPACE_TOOL_TYPES, param)
    available = ", ".join(map(repr, NAMESPACE_TOOL_TYPES))
    return invalid(f"Tool type '{kind}' is not available in a namespace. Available types: {available}.", param=param)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _value_at(document: object, path: str) -> object:
    """The value at a JSON path such as `$.tools[0].name`; None if there is none."""
    for step in _STEP_RE.finditer(path):
        key = step["name"] if step["index"] is None else int(step["index"])
        try:
            document = cast("Any", document)[key]
        except (KeyError, IndexError, TypeError):
            return None
    return document


def _violation(reason: str, param: str, value: object) -> ApiError:
    """The error for a value of a wrong type, range, length or pattern."""
    name = param or "body"
    if bound := _RANGE_RE.fullmatch(reason):
        number, kind = float(bound["bound"]), "integer" if bound["type"] == "int" else "decimal"
        if bound["sign"].startswith("<"):
            return out_of_range(name, value, maximum=number, kind=kind)
        return out_of_range(name, value, minimum=number, kind=kind)
    if length := _LENGTH_RE.fullmatch(reason):
        return _wrong_length(length, name, value)
    if pattern := _PATTERN_RE.fullmatch(reason):
        expected = f"string does not match pattern. Expected a string that matches the pattern {pattern['pattern']}"
        return invalid(f"Invalid '{name}': {expected}.", param=param)
    if wrong_type := _TYPE_RE.fullmatch(reason):
        expected = _describe_types(wrong_type["expected"])
        got = f", but got {_describe_types(wrong_type['given'])} instead" if wrong_type["given"] else ""
        return invalid(
            f"Invalid type for '{name}': expected {expected}{got}.", param=param or None, code="invalid_type"
        )
    return invalid(f"Invalid value for '{name}': {reason[:_MAX_LENGTH]}.", param=param or None)


def _wrong_length(length: re.Match[str], param: str, value: object) -> ApiError:
    if length["sign"] == ">=":  # no parameter has a minimum above 1
        message = f"Invalid '{param}': empty string. Expected a string with minimum length {length['bound']}."
        return invalid(message, param=param, code="empty_string")
    code, problem, expected, given = _LENGTH_ERRORS[length["type"]]
    size = len(cast("str", value)) if isinstance(value, str | list | dict) else None
    got = "" if size is None else f", but got {given.format(size)} instead"
    message = f"Invalid '{param}': {problem}. Expected {expected.format(length['bound'])}{got}."
    return invalid(message, param=param, code=code)


def _describe_types(union: str) -> str:
    """`str | array | null` in words; null is named only where it stands alone."""
    names = [_TYPE_NAMES.get(name, name) for name in union.split(" | ") if name != "null"] or ["null"]
    return names[0] if len(names) == 1 else f"one of {', '.join(names[:-1])} or {names[-1]}"
