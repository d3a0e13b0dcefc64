"""Maps errors of upstream models to `ModelFault`: status, code, message, retryable. Pure.

The party at fault decides the status:

    the caller's    400  context_length_exceeded, model_not_found, invalid_prompt, invalid_encrypted_content
                    413  request_too_large
                    429  rate_limit_exceeded
    the operator's  502  server_error     rejected credentials, wrong base URL: not retryable
                    429  insufficient_quota    not retryable
    the upstream's  502  server_error     failed; 503 overloaded, 504 timed out: retryable

Where the caller is at fault, the message quotes the upstream's, redacted. Otherwise no text of an upstream reaches the
caller, because it is not about the request: it may contain the operator's account, or prompts of other callers.

`invalid_prompt` is the code of every other 400: OpenAI's SDKs declare no other code for it, and clients that read the
codes of failed responses repeat a request whose code they do not know.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final, TypeAlias, cast

import msgspec
from msgspec import Struct

from antwort.api.errors import ResponseErrorCode
from antwort.engine.ports import ModelFault

_TOO_LONG_RE = re.compile(
    r"context[_ ](?:length|window|size)|maximum model length|max(?:imum)?[_ ]model[_ ]len|prompt is too long"
    r"|too many (?:input )?tokens|exceed_context_size|n_ctx|input (?:is )?too long"
)
_OUTPUT_LIMIT_RE = re.compile(
    r"\bmax(?:_completion|_output)?_tokens\b.{0,100}?\b(?:too large|at most|range|less than or equal|above maximum)\b"
)
# `unknown` stands next to the model: a model may also be said not to accept an unknown parameter.
_MODEL_MISSING_RE = re.compile(
    r"model[_ ]not[_ ]found|\bmodel\b.{0,200}?\b(?:not found|not exist|not loaded)|no such model"
    r"|\bunknown model\b|\bmodel (?:(?:\S{1,200} )?is )?unknown\b"
)
# In a code or type only: messages of rate limits name quotas too, such as those of Azure and Gemini.
_QUOTA = r"insufficient_quota|current_quota|billing"
_QUOTA_RE = re.compile(_QUOTA)
_TRY_AGAIN_RE = re.compile(
    r"(?:try again|retry) (?:in|after) (?:(?P<minutes>\d{1,4})m)?(?P<number>\d{1,6}(?:\.\d{1,6})?)"
    r"(?:(?P<unit>ms|s)| seconds?)\b"
)
_CONTENT_FILTER_RE = re.compile(r"content_filter|content management policy|invalid_prompt|moderation")
# Google answers 400, not 401, for a key that it does not accept. A message is about the key only if it begins with it:
# further on it may quote the request.
_CREDENTIALS_CODE_RE = re.compile(r"(?:invalid|incorrect)_api_key|api_key_(?:not_valid|invalid|expired)|authentication")
_CREDENTIALS_MESSAGE_RE = re.compile(
    r"\s*(?:(?:the |your )?api key (?:is |has )?(?:not valid|invalid|expired|incorrect)|(?:invalid|incorrect) api key)"
)
_INVALID_ENCRYPTED_CONTENT: Final = "invalid_encrypted_content"
_ENCRYPTED_ITEM_ID_RE = re.compile(r"\b(?:cmp|rs)_[0-9A-Za-z]{1,128}\b")
_OVERLOADED_STATUSES = {HTTPStatus.SERVICE_UNAVAILABLE, 529}
_TIMEOUT_STATUSES = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.GATEWAY_TIMEOUT}
_BAD_REQUEST_STATUSES = {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.REQUEST_ENTITY_TOO_LARGE}
_CREDENTIAL_STATUSES = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.PAYMENT_REQUIRED}

_MAX_VALIDATION_ERRORS = 3
_MAX_TEXT = 8000  # more than redaction reads, which cuts at a space
_NO_ENDPOINT = "The model's upstream has no such endpoint."

Redact: TypeAlias = Callable[[str], str]
"""Removes secrets and addresses from a message of an upstream."""


class UpstreamError(Struct, frozen=True):
    """An upstream's error, parsed from any of the formats that servers use. Its texts are cut."""

    code: str = ""
    kind: str = ""
    message: str = ""
    status: int | None = None

    @property
    def text(self) -> str:
        """Code, type and message in lower case, for pattern search."""
        return f"{self.named} {self.message.lower()}"

    @property
    def named(self) -> str:
        """Code and type in lower case: what the upstream says without quoting the request."""
        return f"{self.code} {self.kind}".lower()


ToFault: TypeAlias = Callable[[UpstreamError], ModelFault]
"""Maps an error within the stream of one upstream."""


def parse_error_body(body: bytes) -> UpstreamError:
    """Parse the body of an error response."""
    try:
        return parse_error(msgspec.json.decode(body))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return UpstreamError(message=body[:_MAX_TEXT].decode(errors="replace"))


def parse_error(error: object) -> UpstreamError:
    """Parse an error in JSON: OpenAI's envelope, vLLM's flat form, a bare string, FastAPI's `detail`."""
    if isinstance(error, str):
        return UpstreamError(message=error[:_MAX_TEXT])
    if isinstance(error, list):
        problems = cast("list[object]", error)[:_MAX_VALIDATION_ERRORS]
        if problems and isinstance(problems[0], dict) and "error" in problems[0]:  # Google's envelope
            return parse_error(cast("object", problems[0]))
        return UpstreamError(message="; ".join(filter(None, map(_validation_error, problems)))[:_MAX_TEXT])
    if not isinstance(error, dict):
        return UpstreamError()
    fields = cast("dict[str, object]", error)
    inner = fields.get("error") or fields.get("detail")
    if inner:
        return parse_error(inner)
    code, status = fields.get("code"), fields.get("status")
    number = code if isinstance(code, int) else status
    return UpstreamError(
        code=code[:_MAX_TEXT] if isinstance(code, str) else "",
        kind=str(fields.get("type") or "")[:_MAX_TEXT],
        message=str(fields.get("message") or "")[:_MAX_TEXT],
        status=number if isinstance(number, int) and 400 <= number < 600 else None,  # noqa: PLR2004 - HTTP's errors
    )


def _validation_error(problem: object) -> str:
    """One entry of FastAPI's `detail`: the path of the field, and the message."""
    fields = cast("dict[str, object]", problem) if isinstance(problem, dict) else {}
    path, message = fields.get("loc"), fields.get("msg")
    where = ".".join(map(str, cast("list[object]", path))) if isinstance(path, list) else ""
    return ": ".join(filter(None, (where, message if isinstance(message, str) else "")))


def fault_from_response(
    status: int, headers: Mapping[str, str], error: UpstreamError, *, model: str, redact: Redact
) -> ModelFault:
    """The fault for an error response."""
    fault = _fault_for_status(status, _Refusal(error, model, redact), parse_retry_after(headers))
    if headers.get("x-should-retry") == "false":
        fault.retryable = False
    return fault


def fault_from_stream_error(error: UpstreamError, *, model: str, redact: Redact) -> ModelFault:
    """The fault for an error event within a stream, which has no HTTP status."""
    return _fault_for_status(error.status or _guess_status(error), _Refusal(error, model, redact), None)


# The status of an error within a stream, by the first pattern that its code or type matches.
_STREAM_STATUSES = (
    (re.compile(rf"rate_limit|resource_exhausted|{_QUOTA}"), HTTPStatus.TOO_MANY_REQUESTS),
    (re.compile(r"overloaded|slow_down"), HTTPStatus.SERVICE_UNAVAILABLE),
    (re.compile(r"api_key|authentication|permission"), HTTPStatus.UNAUTHORIZED),
    (re.compile(r"model_not_found"), HTTPStatus.NOT_FOUND),
    (re.compile(r"invalid|unsupported|badrequest|policy|image|content_filter|residency"), HTTPStatus.BAD_REQUEST),
)


def _guess_status(error: UpstreamError) -> int:
    status = next((status for pattern, status in _STREAM_STATUSES if pattern.search(error.named)), None)
    if status is not None:
        return status
    if "too many requests" in error.text:
        return HTTPStatus.TOO_MANY_REQUESTS
    return HTTPStatus.BAD_REQUEST if _TOO_LONG_RE.search(error.text) else HTTPStatus.INTERNAL_SERVER_ERROR


class _Refusal(Struct, frozen=True):
    """An error for which the caller may be at fault: the upstream's message is added to that of the fault."""

    error: UpstreamError
    model: str
    redact: Redact

    def fault(self, message: str, code: ResponseErrorCode, status: int = 400) -> ModelFault:
        quoted = "" if self.error.message.lstrip().startswith("<") else self.redact(self.error.message)
        return ModelFault(f"{message} Upstream message: {quoted}" if quoted else message, code=code, status=status)

    def context_too_long(self) -> ModelFault:
        message = "Your input exceeds the context window of this model. Shorten it and try again."
        return self.fault(message, "context_length_exceeded")

    def model_not_found(self) -> ModelFault:
        return self.fault(f"The model '{self.model}' is not available at its upstream.", "model_not_found")


def _fault_for_status(status: int, refusal: _Refusal, wait: int | None) -> ModelFault:
    text = refusal.error.text
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return _too_many_requests(refusal.error, wait)
    if status in _CREDENTIAL_STATUSES or (status in _BAD_REQUEST_STATUSES and _is_about_credentials(refusal.error)):
        return misconfigured("The model's upstream does not accept this server's credentials.")
    if status == HTTPStatus.NOT_FOUND:
        is_model_missing = _MODEL_MISSING_RE.search(text)
        return refusal.model_not_found() if is_model_missing else misconfigured(_NO_ENDPOINT)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _TIMEOUT_STATUSES:
        # llama.cpp and others send 500 for a prompt that is too long.
        return refusal.context_too_long() if _TOO_LONG_RE.search(text) else upstream_failed(status, wait)
    if status in _BAD_REQUEST_STATUSES:
        return _bad_request(status, refusal)
    return misconfigured(f"The model's upstream answered with the unexpected status {status}.")


def _is_about_credentials(error: UpstreamError) -> bool:
    return bool(_CREDENTIALS_CODE_RE.search(error.named) or _CREDENTIALS_MESSAGE_RE.match(error.message.lower()))


def _too_many_requests(error: UpstreamError, wait: int | None) -> ModelFault:
    wait = _stated_wait(error) if wait is None else wait
    if wait is None and _QUOTA_RE.search(error.named):
        return ModelFault(
            "This server's quota at the model's upstream is exhausted. The operator of this server must raise it.",
            code="insufficient_quota",
            status=429,
        )
    return ModelFault(
        "The model's upstream limits the request rate. Try again later.",
        code="rate_limit_exceeded",
        status=429,
        retry_after=wait,
        retryable=True,
    )


def _stated_wait(error: UpstreamError) -> int | None:
    """The seconds that the message of a rate limit states, rounded up: within a stream there are no headers."""
    stated = _TRY_AGAIN_RE.search(error.message)
    if stated is None:
        return None
    seconds = float(stated["number"]) / (1000 if stated["unit"] == "ms" else 1)
    return math.ceil(60 * int(stated["minutes"] or 0) + seconds)


def _bad_request(status: int, refusal: _Refusal) -> ModelFault:
    error = refusal.error
    if error.code == _INVALID_ENCRYPTED_CONTENT:
        return _invalid_encrypted_content(error)
    if _TOO_LONG_RE.search(error.text):
        return refusal.context_too_long()
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return refusal.fault("The request is too large for this model.", "request_too_large", 413)
    if error.code == "model_not_found" or _MODEL_MISSING_RE.search(error.text):
        return refusal.model_not_found()
    if _CONTENT_FILTER_RE.search(error.text):
        return refusal.fault("The model's upstream rejected this prompt.", "invalid_prompt")
    fault = refusal.fault("The model's upstream rejected the request as invalid.", "invalid_prompt")
    fault.exceeds_output_limit = _OUTPUT_LIMIT_RE.search(error.text) is not None
    return fault


def _invalid_encrypted_content(error: UpstreamError) -> ModelFault:
    item_id = _ENCRYPTED_ITEM_ID_RE.search(error.message)
    which = f"item {item_id[0]}" if item_id else "an item"
    return ModelFault(
        f"The encrypted content for {which} could not be verified by the model's upstream. "
        "Remove it, and send plain items in its place.",
        code=_INVALID_ENCRYPTED_CONTENT,
        status=400,
    )


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
