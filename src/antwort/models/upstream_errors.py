"""What an upstream's refusal means to our caller, in our own words. Pure.

Whose fault it is decides the answer:

    the caller's    400  context_length_exceeded, model_not_found, invalid_request, invalid_prompt
                    413  request_too_large
                    429  rate_limit_exceeded
    the operator's  502  server_error     a refused key, an address that is none, a spent quota: trying again is no use
    the upstream's  502  server_error     broken; 503 overloaded, 504 too slow: trying again may help

Nothing that an upstream says gets through: neither its words, which may hold keys,
addresses and other people's prompts, nor its headers.
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

_TOO_LONG = re.compile(
    r"context[_ ](?:length|window|size)|maximum model length|max(?:imum)?[_ ]model[_ ]len|prompt is too long"
    r"|too many (?:input )?tokens|exceed_context_size|n_ctx|input (?:is )?too long"
)
_MODEL_MISSING = re.compile(
    r"model[_ ]not[_ ]found|\bmodel\b.*\b(?:not found|not exist|unknown|not loaded)|no such model"
)
_QUOTA = re.compile(r"insufficient_quota|billing|quota")
_FILTERED = re.compile(r"content_filter|content management policy|invalid_prompt|moderation")
_OVERLOADED = {HTTPStatus.SERVICE_UNAVAILABLE, 529}
_TOO_SLOW = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.GATEWAY_TIMEOUT}
_BAD = {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.REQUEST_ENTITY_TOO_LARGE}
_KEY = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.PAYMENT_REQUIRED}

# What else a 400 may be about: enough for the caller to know what to change.
_HINTS = (
    (re.compile(r"does not support tools|tool[_ ]?choice|tool use|--enable-auto-tool|\btools?\b"), "tools"),
    (re.compile(r"image|multimodal|multi-modal|vision|mmproj"), "images"),
    (re.compile(r"response_format|json_schema|schema|grammar|guided"), "the output format"),
    (re.compile(r"reasoning|thinking"), "the reasoning options"),
    (re.compile(r"temperature|top_p|top_logprobs|logprobs|penalty"), "the sampling options"),
    (re.compile(r"\broles?\b|alternat|chat template|system message"), "the order or the roles of the messages"),
)


class Said(Struct, frozen=True):
    """What can be made of an upstream's error, in any of the shapes that servers use."""

    code: str = ""
    kind: str = ""
    message: str = ""
    status: int | None = None

    @property
    def text(self) -> str:
        """All of it in small letters, to look for words in."""
        return f"{self.code} {self.kind} {self.message}".lower()


def read_body(body: bytes) -> Said:
    """The body of a refusal."""
    try:
        return read_error(msgspec.json.decode(body))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return Said(message=body[:2000].decode(errors="replace"))


def read_error(error: object) -> Said:
    """An error as JSON: OpenAI's envelope, vLLM's flat one, a bare string, FastAPI's `detail`."""
    if isinstance(error, str):
        return Said(message=error)
    if not isinstance(error, dict):
        return Said()
    fields = cast("dict[str, object]", error)
    inner = fields.get("error") or fields.get("detail")
    if inner:
        return read_error(inner)
    code, status = fields.get("code"), fields.get("status")
    number = code if isinstance(code, int) else status
    return Said(
        code=code if isinstance(code, str) else "",
        kind=str(fields.get("type") or ""),
        message=str(fields.get("message") or ""),
        status=number if isinstance(number, int) and 400 <= number < 600 else None,  # noqa: PLR2004 - HTTP's errors
    )


def refused(status: int, headers: Mapping[str, str], said: Said, *, model: str) -> ModelFault:
    """The fault for an answer with this status."""
    fault = _by_status(status, said, model, retry_after(headers))
    if headers.get("x-should-retry") == "false":
        fault.retryable = False
    return fault


def broke_off(said: Said, *, model: str) -> ModelFault:
    """The fault for an error that came in the middle of an answer, where the status no longer tells."""
    return _by_status(said.status or _guess_status(said), said, model, None)


def _guess_status(said: Said) -> int:
    if "rate_limit" in said.text or "too many requests" in said.text:
        return HTTPStatus.TOO_MANY_REQUESTS
    if "invalid_request" in said.text or "badrequest" in said.text or _TOO_LONG.search(said.text):
        return HTTPStatus.BAD_REQUEST
    return HTTPStatus.INTERNAL_SERVER_ERROR


def _by_status(status: int, said: Said, model: str, wait: int | None) -> ModelFault:
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return _too_many(said, wait)
    if status in _KEY:
        return misconfigured("The model's upstream does not accept this server's credentials.")
    if status == HTTPStatus.NOT_FOUND:
        return _not_found(said, model)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _TOO_SLOW:
        # llama.cpp and others answer 500 to a prompt that is too long.
        return _too_long() if _TOO_LONG.search(said.text) else broken(status, wait)
    if status in _BAD:
        return _bad_request(status, said, model)
    return misconfigured(f"The model's upstream answered with status {status}, which makes no sense to this server.")


def _too_many(said: Said, wait: int | None) -> ModelFault:
    if _QUOTA.search(said.text) and "rate_limit" not in said.text:
        return misconfigured("This server's quota at the model's upstream is used up.")
    return ModelFault(
        "The model is taking no more requests right now. Try again later.",
        code="rate_limit_exceeded",
        status=429,
        retry_after=wait,
        retryable=True,
    )


def _not_found(said: Said, model: str) -> ModelFault:
    if _MODEL_MISSING.search(said.text):
        return _no_model(model)
    return misconfigured("The model's upstream has no such endpoint.")


def _no_model(model: str) -> ModelFault:
    return ModelFault(f"The model '{model}' is not available at its upstream.", code="model_not_found", status=400)


def _too_long() -> ModelFault:
    return ModelFault(
        "Your input exceeds the context window of this model. Shorten it and try again.",
        code="context_length_exceeded",
        status=400,
    )


def _bad_request(status: int, said: Said, model: str) -> ModelFault:
    if _TOO_LONG.search(said.text):
        return _too_long()
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return ModelFault("The request is too large for this model.", code="request_too_large", status=413)
    if said.code == "model_not_found" or _MODEL_MISSING.search(said.text):
        return _no_model(model)
    if _FILTERED.search(said.text):
        return ModelFault("The model's upstream declined this prompt.", code="invalid_prompt", status=400)
    about = next((what for pattern, what in _HINTS if pattern.search(said.text)), None)
    hint = f" It does not take {about} as given." if about else ""
    return ModelFault(f"The model refused the request as invalid.{hint}", code="invalid_request", status=400)


def misconfigured(message: str) -> ModelFault:
    """The operator's: no caller can mend it, and neither can another try."""
    return ModelFault(f"{message} The operator of this server has to look at its configuration.")


def broken(status: int = HTTPStatus.INTERNAL_SERVER_ERROR, wait: int | None = None) -> ModelFault:
    """It works on it and fails."""
    if status in _TOO_SLOW:
        return timed_out()
    ours = 503 if status in _OVERLOADED else 502
    return ModelFault("The model had an error. Try again.", status=ours, retry_after=wait, retryable=True)


def unreachable() -> ModelFault:
    """Nobody listens there."""
    return ModelFault("The model cannot be reached. Try again.", retryable=True)


def timed_out() -> ModelFault:
    """It took too long."""
    return ModelFault("The model did not answer in time. Try again.", status=504, retryable=True)


def cut_off() -> ModelFault:
    """The connection ended before the answer did."""
    return ModelFault("The model's answer ended before it was whole. Try again.", retryable=True)


def garbled() -> ModelFault:
    """What came is not what was agreed on."""
    return ModelFault("The model's answer could not be read.", retryable=True)


def retry_after(headers: Mapping[str, str], *, now: datetime | None = None) -> int | None:
    """Whole seconds that a refusal asks to wait: `retry-after-ms`, or `retry-after` as seconds or as a date."""
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
