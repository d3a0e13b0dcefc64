"""Types of answers: the message, its content blocks, and the events of a stream."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from antwort.net.sse import encode_frame

StopReason: TypeAlias = Literal[
    "end_turn", "tool_use", "max_tokens", "stop_sequence", "refusal", "model_context_window_exceeded"
]


class ServerToolUsage(Struct):
    """Requests of hosted tools to other servers."""

    web_search_requests: int = 0
    web_fetch_requests: int = 0


class MessageUsage(Struct, kw_only=True):
    """Token usage. The tokens of the prompt are the sum of the first three."""

    input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int = 0
    server_tool_use: ServerToolUsage | UnsetType = UNSET
    """Set if hosted tools made such requests."""


class ContainerInfo(Struct):
    """The container of hosted tools."""

    id: str
    expires_at: str


class AnswerMessage(Struct, kw_only=True):
    """The answer: what the events of its stream add up to."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage = field(default_factory=MessageUsage)
    container: ContainerInfo | UnsetType = UNSET
    """Set if a hosted tool used a container."""


# ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class MessageStart(Struct, tag_field="type", tag="message_start"):
    """The first event. The usage is known at the end only."""

    message: AnswerMessage


class ContentBlockStart(Struct, tag_field="type", tag="content_block_start"):
    """A content block starts: empty, or whole if it has no deltas."""

    index: int
    content_block: dict[str, Any]


class TextDelta(Struct, tag_field="type", tag="text_delta"):
    """A fragment of text."""

    text: str


class ThinkingDelta(Struct, tag_field="type", tag="thinking_delta"):
    """A fragment of reasoning."""

    thinking: str


class SignatureDelta(Struct, tag_field="type", tag="signature_delta"):
    """The signature of reasoning."""

    signature: str


class InputJsonDelta(Struct, tag_field="type", tag="input_json_delta"):
    """A fragment of the input of a call, which is JSON when all of them are joined."""

    partial_json: str


class CitationsDelta(Struct, tag_field="type", tag="citations_delta"):
    """A citation of the text."""

    citation: dict[str, Any]


Delta: TypeAlias = TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta | CitationsDelta


class ContentBlockDelta(Struct, tag_field="type", tag="content_block_delta"):
    """A fragment of the open content block."""

    index: int
    delta: Delta


class ContentBlockStop(Struct, tag_field="type", tag="content_block_stop"):
    """The open content block is complete."""

    index: int


class MessageEnd(Struct):
    """The fields of the message that are known at its end."""

    stop_reason: StopReason
    stop_sequence: str | None = None
    container: ContainerInfo | UnsetType = UNSET


class MessageDelta(Struct, tag_field="type", tag="message_delta"):
    """The end of the message. Its usage replaces that of the first event."""

    delta: MessageEnd
    usage: MessageUsage


class MessageStop(Struct, tag_field="type", tag="message_stop"):
    """The last event."""


class Ping(Struct, tag_field="type", tag="ping"):
    """Nothing has happened for some time."""


class ErrorInfo(Struct):
    """What went wrong."""

    type: str
    message: str


class MessagesApiError(Struct, tag_field="type", tag="error"):
    """The body of an error; also the last event of a stream that fails."""

    error: ErrorInfo
    request_id: str | UnsetType = UNSET


StreamEvent: TypeAlias = (
    MessageStart
    | ContentBlockStart
    | ContentBlockDelta
    | ContentBlockStop
    | MessageDelta
    | MessageStop
    | Ping
    | MessagesApiError
)

STREAM_EVENTS: tuple[type[Struct], ...] = (
    MessageStart,
    ContentBlockStart,
    ContentBlockDelta,
    ContentBlockStop,
    MessageDelta,
    MessageStop,
    Ping,
    MessagesApiError,
)


def to_sse(event: StreamEvent) -> bytes:
    """The event as an SSE frame. Clients read the name of the event, not only its data."""
    return encode_frame(str(event.__struct_config__.tag), msgspec.json.encode(event))


PING = to_sse(Ping())


def to_rfc3339(seconds: float) -> str:
    """A time in seconds as this wire writes it."""
    return datetime.fromtimestamp(int(seconds), UTC).isoformat().replace("+00:00", "Z")
