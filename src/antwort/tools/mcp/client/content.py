"""Content of results: what a tool returned, as the text that the client and the model read. Pure."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import mcp_types as types
import msgspec

from antwort.engine.truncate import truncate_chars
from antwort.tools.mcp.client.targets import McpToolResult

MAX_TEXT_CHARS: Final = 1_000_000
"""Characters of a result that the client gets."""
MAX_ERROR_CHARS: Final = 10_000
_MAX_BLOCKS: Final = 1_000
_SURROGATE_RE: Final = re.compile("[\ud800-\udfff]")
_UNSAFE_RE: Final = re.compile("[\0\ud800-\udfff]")  # not storable, or not encodable


def tool_result(result: types.CallToolResult) -> McpToolResult:
    """The text of a result. Images, sounds and binary resources are named with their size; models read text here."""
    blocks = result.content[:_MAX_BLOCKS]
    if result.is_error:
        text = clean(truncate_chars("\n".join(map(_text, blocks)), MAX_ERROR_CHARS))
        return McpToolResult(text, error_content=[{"type": "text", "text": text}])
    text = "\n".join(map(_text, blocks))
    if not blocks and result.structured_content is not None:
        text = msgspec.json.encode(result.structured_content).decode()
    return McpToolResult(clean(truncate_chars(text, MAX_TEXT_CHARS)))


def clean(text: str) -> str:
    """The text without NUL and unpaired surrogates."""
    return _UNSAFE_RE.sub("\N{REPLACEMENT CHARACTER}", text)


def clean_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments without unpaired surrogates, which the SDK cannot encode: that would end the whole session."""
    written = json.dumps(arguments, ensure_ascii=False)
    return arguments if written.isascii() else json.loads(_SURROGATE_RE.sub("\N{REPLACEMENT CHARACTER}", written))


def _text(block: Any) -> str:  # noqa: ANN401, PLR0911 - a union that grows with the protocol; one line per type
    match block:
        case types.TextContent(text=text):
            return text
        case types.ImageContent(data=data, mime_type=kind):
            return f"[image {kind}, {_decoded_size(data)} bytes]"
        case types.AudioContent(data=data, mime_type=kind):
            return f"[audio {kind}, {_decoded_size(data)} bytes]"
        case types.EmbeddedResource(resource=types.TextResourceContents(text=text)):
            return text
        case types.EmbeddedResource(resource=types.BlobResourceContents(uri=uri, blob=blob)):
            return f"[resource {uri}, {_decoded_size(blob)} bytes]"
        case types.ResourceLink(uri=uri, name=name):
            return f"[resource {name}: {uri}]"
        case _:
            return f"[{getattr(block, 'type', 'unknown')} content]"


def _decoded_size(base64: str) -> int:
    return len(base64) * 3 // 4 - base64[-2:].count("=")
