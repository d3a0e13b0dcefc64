"""Token count estimates of requests, for upstreams without a tokenizer endpoint or usage numbers. Pure.

`antwort.api.token_estimate` says how texts and items are estimated; each tool adds a constant.
"""

from __future__ import annotations

from typing import Any

import msgspec

from antwort.api.requests import JsonSchemaFormat
from antwort.api.responses import Usage
from antwort.api.token_estimate import TOKENS_PER_MESSAGE, estimate_item, estimate_text
from antwort.engine.ports import CallPiece, ModelRequest, Piece, ReasoningPiece, RefusalPiece, SummaryPiece, TextPiece

_TOKENS_PER_TOOL = 8


def estimate_request(request: ModelRequest) -> int:
    """Estimated tokens of a request."""
    total = estimate_text(request.instructions or "") + TOKENS_PER_MESSAGE
    total += sum(estimate_item(item) for item in request.items)
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


def _json(value: Any) -> str:  # noqa: ANN401 - a schema is any JSON
    return msgspec.json.encode(value).decode() if value else ""
