"""Maps errors of upstream models to `ModelFault`: status, code, message, retryable. Pure.

The party at fault decides the status:

    the caller's    400  context_length_exceeded, model_not_found, invalid_request, invalid_prompt
                    400  invalid_encrypted_content
                    413  request_too_large
                    429  rate_limit_exceeded
    the operator's  502  server_error     rejected credentials, wrong base URL: not retryable
                    429  insufficient_quota    not retryable
    the upstream's  502  server_error     failed; 503 overloaded, 504 timed out: retryable

No text or header of an upstream reaches the caller: they may contain keys, addresses and prompts of other callers. The
only exception is the id of an item whose encrypted content the upstream refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import cast

import msgspec
from msgspec import Struct

from antwort.engine.ports import ModelFault

_TOO_LONG_RE = re.compile(
    r"context[_ ](?:length|window|size)|maximum model length|max(?:imum)?[_ ]model[_ ]len|prompt is too long"
    r"|too many (?:input )?tokens|exceed_context_size|n_ctx|input (?:is )?too long"
)
_MODEL_MISSING_RE = re.compile(
    r"model[_ ]not[_ ]found|\bmodel\b.*\b(?:not found|not exist|unknown|not loaded)|no such model"
)
_QUOTA_RE = re.compile(r"insufficient_quota|billing|quota")
_TRY_AGAIN_RE = re.compile(r"try again in (?:(?P<minutes>\d{1,4})m)?(?P<number>\d{1,6}(?:\.\d{1,6})?)(?P<unit>ms|s)\b")
_CONTENT_FILTER_RE = re.compile(r"content_filter|content management policy|invalid_prompt|moderation")
_INVALID_ENCRYPTED_CONTENT = "invalid_encrypted_content"
_ENCRYPTED_ITEM_ID_RE = re.compile(r"\b(?:cmp|rs)_[0-9A-Za-z]{1,128}\b")
_OVERLOADED_STATUSES = {HTTPStatus.SERVICE_UNAVAILABLE, 529}
_TIMEOUT_STATUSES = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.GATEWAY_TIMEOUT}
_BAD_REQUEST_STATUSES = {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.REQUEST_ENTITY_TOO_LARGE}
_CREDENTIAL_STATUSES = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.PAYMENT_REQUIRED}

# Other causes of a 400, so that the message names what to change.
_HINTS = (
    (re.compile(r"does not support tools|tool[_ ]?choice|tool use|--enable-auto-tool|\btools?\b"), "tools"),
    (re.compile(r"image|multimodal|multi-modal|vision|mmproj"), "images"),
    (re.compile(r"response_format|json_schema|schema|grammar|guided"), "the output format"),
    (re.compile(r"reasoning|thinking"), "the reasoning options"),
    (re.compile(r"temperature|top_p|top_logprobs|logprobs|penalty"), "the sampling options"),
    (re.compile(r"\broles?\b|alternat|chat template|system message"), "the order or the roles of the messages"),
)


class UpstreamError(Struct, frozen=True):
    """An upstream's error, parsed from any of the formats that servers use."""

    code: str = ""
    kind: str = ""
    message: str = ""
    status: int | None = None

    @property
    def text(self) -> str:
        """Code, type and message in lower case, for pattern search."""
        return f"{self.code} {self.kind} {self.message}".lower()


def parse_error_body(body: bytes) -> UpstreamError:
    """Parse the body of an error response."""
    try:
        return parse_error(msgspec.json.decode(body))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return UpstreamError(message=body[:2000].decode(errors="replace"))


def parse_error(error: object) -> UpstreamError:
    """Parse an error in JSON: OpenAI's envelope, vLLM's flat form, a bare string, FastAPI's `detail`."""
    if isinstance(error, str):
        return UpstreamError(message=error)
    if not isinstance(error, dict):
        return UpstreamError()
    fields = cast("dict[str, object]", error)
    inner = fields.get("error") or fields.get("detail")
    if inner:
        return parse_error(inner)
    code, status = fields.get("code"), fields.get("status")
    number = code if isinstance(code, int) else status
    return UpstreamError(
        code=code if isinstance(code, str) else "",
        kind=str(fields.get("type") or ""),
        message=str(fields.get("message") or ""),
        status=number if isinstance(number, int) and 400 <= number < 600 else None,  # noqa: PLR2004 - HTTP's errors
    )


def fault_from_response(status: int, headers: Mapping[str, str], error: UpstreamError, *, model: str) -> ModelFault:
    """The fault for an error response."""
    fault = _fault_for_status(status, error, model, parse_retry_after(headers))
    if headers.get("x-should-retry") == "false":
        fault.retryable = False
    return fault


def fault_from_stream_error(error: UpstreamError, model: str) -> ModelFault:
    """The fault for an error event within a stream, which has no HTTP status."""
    return _fault_for_status(error.status or _guess_status(error), error, model, None)


# The status of an error within a stream, by the first pattern that its code or type matches.
_STREAM_STATUSES = (
    (re.compile(r"rate_limit|insufficient_quota|billing"), HTTPStatus.TOO_MANY_REQUESTS),
    (re.compile(r"overloaded|slow_down"), HTTPStatus.SERVICE_UNAVAILABLE),
    (re.compile(r"api_key|authentication|permission"), HTTPStatus.UNAUTHORIZED),
    (re.compile(r"model_not_found"), HTTPStatus.NOT_FOUND),
    (re.compile(r"invalid|unsupported|badrequest|policy|image|content_filter|residency"), HTTPStatus.BAD_REQUEST),
)


def _guess_status(error: UpstreamError) -> int:
    named = f"{error.code} {error.kind}".lower()
    status = next((status for pattern, status in _STREAM_STATUSES if pattern.search(named)), None)
    if status is not None:
        return status
    if "too many requests" in error.text:
        return HTTPStatus.TOO_MANY_REQUESTS
    return HTTPStatus.BAD_REQUEST if _TOO_LONG_RE.search(error.text) else HTTPStatus.INTERNAL_SERVER_ERROR


def _fault_for_status(status: int, error: UpstreamError, model: str, wait: int | None) -> ModelFault:
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return _too_many_requests(error, wait)
    if status in _CREDENTIAL_STATUSES:
        return misconfigured("The model's upstream does not accept this server's credentials.")
    if status == HTTPStatus.NOT_FOUND:
        return _not_found(error, model)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _TIMEOUT_STATUSES:
        # llama.cpp and others send 500 for a prompt that is too long.
        return _context_too_long() if _TOO_LONG_RE.search(error.text) else upstream_failed(status, wait)
    if status in _BAD_REQUEST_STATUSES:
        return _bad_request(status, error, model)
    return misconfigured(f"The model's upstream answered with the unexpected status {status}.")


def _too_many_requests(error: UpstreamError, wait: int | None) -> ModelFault:
    if _QUOTA_RE.search(error.text) and "rate_limit" not in error.text:
        return ModelFault(
            "This server's quota at the model's upstream is exhausted. The operator of this server must raise it.",
            code="insufficient_quota",
            status=429,
        )
    return ModelFault(
        "The model's upstream limits the request rate. Try again later.",
        code="rate_limit_exceeded",
        status=429,
        retry_after=_stated_wait(error) if wait is None else wait,
        retryable=True,
    )


def _stated_wait(error: UpstreamError) -> int | None:
    """The seconds that the message of a rate limit states, rounded up: within a stream there are no headers."""
    stated = _TRY_AGAIN_RE.search(error.message)
    if stated is None:
        return None
    seconds = float(stated["number"]) / (1000 if stated["unit"] == "ms" else 1)
    return math.ceil(60 * int(stated["minutes"] or 0) + seconds)


def _not_found(error: UpstreamError, model: str) -> ModelFault:
    if _MODEL_MISSING_RE.search(error.text):
        return _model_not_found(model)
    return misconfigured("The model's upstream has no such endpoint.")


def _model_not_found(model: str) -> ModelFault:
    return ModelFault(f"The model '{model}' is not available at its upstream.", code="model_not_found", status=400)


def _invalid_encrypted_content(error: UpstreamError) -> ModelFault:
    item_id = _ENCRYPTED_ITEM_ID_RE.search(error.message)
    which = f"item {item_id[0]}" if item_id else "an item"
    return ModelFault(
        f"The encrypted content for {which} could not be verified by the model's upstream. "
        "Remove it, and send plain items in its place.",
        code=_INVALID_ENCRYPTED_CONTENT,
        status=400,
    )


def _context_too_long() -> ModelFault:
    return ModelFault(
        "Your input exceeds the context window of this model. Shorten it and try again.",
        code="context_length_exceeded",
        status=400,
    )


def _bad_request(status: int, error: UpstreamError, model: str) -> ModelFault:
    if error.code == _INVALID_ENCRYPTED_CONTENT:
        return _invalid_encrypted_content(error)
    if _TOO_LONG_RE.search(error.text):
        return _context_too_long()
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return ModelFault("The request is too large for this model.", code="request_too_large", status=413)
    if error.code == "model_not_found" or _MODEL_MISSING_RE.search(error.text):
        return _model_not_found(model)
    if _CONTENT_FILTER_RE.search(error.text):
        return ModelFault("The model's upstream rejected this prompt.", code="invalid_prompt", status=400)
    about = next((what for pattern, what in _HINTS if pattern.search(error.text)), None)
    hint = f" It does not take {about} as given." if about else ""
    return ModelFault(f"The model rejected the request as invalid.{hint}", code="invalid_request", status=400)


def misconfigured(message: str) -> ModelFault:
    """A configuration error, which only the operator can fix; not retryable."""
    return ModelFault(f"{message} The operator of this server must check its configuration.")


def upstream_failed(status: int = HTTPStatus.INTERNAL_SERVER_ERROR, wait: int | None = None) -> ModelFault:
    """The upstream failed while it processed the request."""
    if status in _TIMEOUT_STATUSES:
        return timed_out()
    fault_status = 503 if status in _OVERLOADED_STATUSES else 502
    return ModelFault("The model failed. Try again.", status=fault_status, retry_after=wait, retryable=True)


def unreachable() -> ModelFault:
    """No connection to the upstream."""
    return ModelFault("The model cannot be reached. Try again.", retryable=True)


def timed_out() -> ModelFault:
    """The upstream exceeded a timeout."""
    return ModelFault("The model did not answer in time. Try again.", status=504, retryable=True)


def answer_truncated() -> ModelFault:
    """The connection ended before the answer was complete."""
    return ModelFault("The model's answer ended before it was complete. Try again.", retryable=True)


def malformed_answer() -> ModelFault:
    """The answer does not follow the protocol, or exceeds a limit."""
    return ModelFault("The model's answer could not be read.", retryable=True)


def parse_retry_after(headers: Mapping[str, str], *, now: datetime | None = None) -> int | None:
    """Seconds to wait, rounded up: from `retry-after-ms`, or `retry-after` in seconds or as a date."""
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        value = headers.get(name, "").strip()
        if re.fullmatch(r"\d{1,12}(\.\d*)?", value):
            return math.ceil(float(value) / unit)
    try:
        until = parsedate_to_datetime(headers.get("retry-after", ""))
    except (ValueError, IndexError):
        return None
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return max(0, math.ceil((until - (now or datetime.now(UTC))).total_seconds()))
