"""Token count estimates, for upstreams without a tokenizer endpoint or usage numbers. Pure.

The estimate is for budgets, not for billing. English and code have about four characters per token; other alphabets
fewer; Chinese, Japanese and Korean about one. Each message and each tool adds a constant, and an image costs what it
costs with common vision models. Real tokenizers stay within about 30 % of the estimate on usual text.
"""

from __future__ import annotations

import re
from typing import Any, cast

import msgspec

from antwort.api.items import GivenMessage, InputImage, Item, Part
from antwort.api.requests import JsonSchemaFormat
from antwort.api.responses import Usage
from antwort.engine.ports import CallPiece, ModelRequest, Piece, ReasoningPiece, RefusalPiece, SummaryPiece, TextPiece

_WIDE_RE = re.compile(r"[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U0001f000-\U0003ffff]")
_TOKENS_PER_MESSAGE = 4
_TOKENS_PER_TOOL = 8
_IMAGE_TOKENS = {"low": 85, "high": 1105}
_DEFAULT_IMAGE_TOKENS = 765


class TokenEstimator:
    """Counts streamed text without storing it."""

    def __init__(self) -> None:
        self._wide = 0
        self._narrow = 0

    def add(self, text: str) -> None:
        if text.isascii():
            self._narrow += len(text)
            return
        wide = len(_WIDE_RE.findall(text))
        plain = len(text.encode("ascii", "ignore"))
        self._wide += wide
        self._narrow += plain + 2 * (len(text) - plain - wide)

    @property
    def tokens(self) -> int:
        return self._wide + (self._narrow + 3) // 4


def estimate_text(text: str) -> int:
    """Estimated tokens of a text."""
    estimator = TokenEstimator()
    estimator.add(text)
    return estimator.tokens


def estimate_request(request: ModelRequest) -> int:
    """Estimated tokens of a request."""
    total = estimate_text(request.instructions or "") + _TOKENS_PER_MESSAGE
    total += sum(_estimate_item(item) for item in request.items)
    for tool in request.tools:
        total += _TOKENS_PER_TOOL + estimate_text(f"{tool.name}{tool.full_description}{_json(tool.parameters)}")
    if isinstance(request.format, JsonSchemaFormat):
        total += estimate_text(_json(request.format.schema))
    return total


def estimate_usage(request: ModelRequest, output_tokens: int) -> Usage:
    """Estimated usage, for an upstream that sends none."""
    input_tokens = estimate_request(request)
    return Usage(input_tokens=input_tokens, output_tokens=output_tokens, total_tokens=input_tokens + output_tokens)


def generated_text(piece: Piece) -> str:
    """The text of a piece that the model generated, for counting."""
    if isinstance(piece, CallPiece):
        return piece.name + piece.arguments
    return piece.text if isinstance(piece, (TextPiece, RefusalPiece, ReasoningPiece, SummaryPiece)) else ""


def _estimate_item(item: Item) -> int:
    if isinstance(item.known, GivenMessage):
        return _TOKENS_PER_MESSAGE + _estimate_content(item.known)
    hidden = {"id", "type", "status", "encrypted_content", "container_id", "result"}
    return _TOKENS_PER_MESSAGE + sum(_estimate_value(value) for name, value in item.raw.items() if name not in hidden)


def _estimate_value(value: object) -> int:
    """Tokens of all strings in a JSON value; a data URL of an image counts as an image."""
    if isinstance(value, str):
        return _DEFAULT_IMAGE_TOKENS if value.startswith("data:image/") else estimate_text(value)
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value).items()
        return sum(estimate_text(name) + _estimate_value(inner) for name, inner in fields)
    if isinstance(value, list):
        return sum(map(_estimate_value, cast("list[object]", value)))
    return 0 if value is None else 1


def _estimate_content(message: GivenMessage) -> int:
    if isinstance(message.content, str):
        return estimate_text(message.content)
    return sum(map(_estimate_part, message.content))


def _estimate_part(part: Part) -> int:
    if isinstance(part, InputImage):
        return _IMAGE_TOKENS.get(part.detail or "", _DEFAULT_IMAGE_TOKENS)
    texts = (getattr(part, name, None) for name in ("text", "refusal", "file_data"))
    return _estimate_value(next(filter(None, texts), None))


def _json(value: Any) -> str:  # noqa: ANN401 - a schema is any JSON
    return msgspec.json.encode(value).decode() if value else ""
