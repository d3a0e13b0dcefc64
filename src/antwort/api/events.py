"""API types of streaming events (SSE). `sequence_number` is assigned when an event is sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct, field

from antwort.api.errors import ErrorDetail
from antwort.api.items import Annotation, OutputText, ReasoningText, Refusal, SummaryText
from antwort.api.responses import Response
from antwort.net.sse import encode_frame


class Event(Struct, tag_field="type", kw_only=True):
    """The base of all events."""

    sequence_number: int = -1


# ── the response ─────────────────────────────────────────────────────────────────────────────────────────────────────


class ResponseEvent(Event):
    """An event with the current state of the response."""

    response: Response


class ResponseCreated(ResponseEvent, tag="response.created"):
    """The first event."""


class ResponseQueued(ResponseEvent, tag="response.queued"):
    """In background mode only: the response is queued."""


class ResponseInProgress(ResponseEvent, tag="response.in_progress"):
    """The response is being generated."""


class ResponseCompleted(ResponseEvent, tag="response.completed"):
    """The last event of a completed response."""


class ResponseIncomplete(ResponseEvent, tag="response.incomplete"):
    """The last event of an incomplete response."""


class ResponseFailed(ResponseEvent, tag="response.failed"):
    """The last event of a failed response."""


class ErrorEvent(Event, tag="error"):
    """Precedes `response.failed`. SDKs raise it; nested as OpenAI sends it."""

    error: ErrorDetail


# ── items and their parts ────────────────────────────────────────────────────────────────────────────────────────────


class ItemEvent(Event):
    """An event with an item."""

    output_index: int
    item: dict[str, Any]


class OutputItemAdded(ItemEvent, tag="response.output_item.added"):
    """An output item starts."""


class OutputItemDone(ItemEvent, tag="response.output_item.done"):
    """An output item is complete."""


class _ItemProgress(Event):
    item_id: str
    output_index: int


class _PartProgress(_ItemProgress):
    content_index: int


class ContentPartAdded(_PartProgress, tag="response.content_part.added"):
    """A content part of a message or of reasoning starts."""

    part: OutputText | Refusal | ReasoningText


class ContentPartDone(_PartProgress, tag="response.content_part.done"):
    """A content part is complete."""

    part: OutputText | Refusal | ReasoningText


class OutputTextDelta(_PartProgress, tag="response.output_text.delta"):
    """A text fragment."""

    delta: str
    logprobs: list[Any] = field(default_factory=list[Any])


class OutputTextAnnotationAdded(_PartProgress, tag="response.output_text.annotation.added"):
    """An annotation (citation) of the text."""

    annotation_index: int
    annotation: Annotation


class OutputTextDone(_PartProgress, tag="response.output_text.done"):
    """The text of a part is complete."""

    text: str
    logprobs: list[Any] = field(default_factory=list[Any])


class RefusalDelta(_PartProgress, tag="response.refusal.delta"):
    """A fragment of a refusal."""

    delta: str


class RefusalDone(_PartProgress, tag="response.refusal.done"):
    """A refusal is complete."""

    refusal: str


class ReasoningTextDelta(_PartProgress, tag="response.reasoning_text.delta"):
    """A fragment of reasoning text."""

    delta: str


class ReasoningTextDone(_PartProgress, tag="response.reasoning_text.done"):
    """The text of a reasoning part is complete."""

    text: str


class _SummaryProgress(_ItemProgress):
    summary_index: int


class SummaryPartAdded(_SummaryProgress, tag="response.reasoning_summary_part.added"):
    """A part of a reasoning summary starts."""

    part: SummaryText


class SummaryPartDone(_SummaryProgress, tag="response.reasoning_summary_part.done"):
    """A part of a reasoning summary is complete."""

    part: SummaryText


class SummaryTextDelta(_SummaryProgress, tag="response.reasoning_summary_text.delta"):
    """A fragment of a reasoning summary."""

    delta: str


class SummaryTextDone(_SummaryProgress, tag="response.reasoning_summary_text.done"):
    """The text of a summary part is complete."""

    text: str


# ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class FunctionArgumentsDelta(_ItemProgress, tag="response.function_call_arguments.delta"):
    """A fragment of the arguments of a function call."""

    delta: str


class FunctionArgumentsDone(_ItemProgress, tag="response.function_call_arguments.done"):
    """The arguments are complete."""

    arguments: str


class CustomInputDelta(_ItemProgress, tag="response.custom_tool_call_input.delta"):
    """A fragment of the input of a custom tool call."""

    delta: str


class CustomInputDone(_ItemProgress, tag="response.custom_tool_call_input.done"):
    """The input is complete."""

    input: str


class CompactionCompacting(_ItemProgress, tag="response.compaction.compacting"):
    """The history is being compacted, on request of a `compaction_trigger`."""


class ToolProgress(Struct, kw_only=True):
    """An event of a hosted tool call, such as `response.code_interpreter_call.interpreting`.

    One struct for all of them: they differ in `type` only. `fields` are merged into the event.
    """

    type: str
    item_id: str | None
    """None for an event without it."""
    output_index: int
    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    sequence_number: int = -1


AnyEvent: TypeAlias = Event | ToolProgress


def _concrete_events(base: type[Event]) -> Iterator[type[Event]]:
    for event in base.__subclasses__():
        yield from _concrete_events(event) if event.__subclasses__() else (event,)


EVENTS = tuple(_concrete_events(Event))
"""All event types, except those of hosted tool calls."""

FINAL_EVENTS = (ResponseCompleted, ResponseIncomplete, ResponseFailed)


def kind_of(event: AnyEvent) -> str:
    """The `type` of the event."""
    return event.type if isinstance(event, ToolProgress) else str(event.__struct_config__.tag)


def to_json(event: AnyEvent) -> bytes:
    """The event's JSON."""
    if isinstance(event, ToolProgress):
        plain = msgspec.to_builtins(event)
        if event.item_id is None:
            del plain["item_id"]
        return msgspec.json.encode(plain | plain.pop("fields"))
    return msgspec.json.encode(event)


def to_sse(event: AnyEvent) -> bytes:
    """The event as an SSE frame."""
    return encode_frame(kind_of(event), to_json(event))
