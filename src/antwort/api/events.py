"""Events of a response, as the wire has them. `sequence_number` is given when an event is sent, not before."""

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
    """One that holds the response as it is then."""

    response: Response


class ResponseCreated(ResponseEvent, tag="response.created"):
    """Always the first."""


class ResponseQueued(ResponseEvent, tag="response.queued"):
    """In background mode only."""


class ResponseInProgress(ResponseEvent, tag="response.in_progress"):
    """Work has begun."""


class ResponseCompleted(ResponseEvent, tag="response.completed"):
    """The last, when all went well."""


class ResponseIncomplete(ResponseEvent, tag="response.incomplete"):
    """The last, when it had to stop short."""


class ResponseFailed(ResponseEvent, tag="response.failed"):
    """The last, when it failed."""


class ErrorEvent(Event, tag="error"):
    """Comes before `response.failed`. Nested as OpenAI sends it: SDKs raise it."""

    error: ErrorDetail


# ── items and their parts ────────────────────────────────────────────────────────────────────────────────────────────


class ItemEvent(Event):
    """One that holds a whole item."""

    output_index: int
    item: dict[str, Any]


class OutputItemAdded(ItemEvent, tag="response.output_item.added"):
    """An item begins."""


class OutputItemDone(ItemEvent, tag="response.output_item.done"):
    """An item is whole."""


class _OfItem(Event):
    item_id: str
    output_index: int


class _OfPart(_OfItem):
    content_index: int


class ContentPartAdded(_OfPart, tag="response.content_part.added"):
    """A part of a message or of reasoning begins."""

    part: OutputText | Refusal | ReasoningText


class ContentPartDone(_OfPart, tag="response.content_part.done"):
    """A part is whole."""

    part: OutputText | Refusal | ReasoningText


class OutputTextDelta(_OfPart, tag="response.output_text.delta"):
    """Some more text."""

    delta: str
    logprobs: list[Any] = field(default_factory=list[Any])


class OutputTextAnnotationAdded(_OfPart, tag="response.output_text.annotation.added"):
    """The text so far cites something."""

    annotation_index: int
    annotation: Annotation


class OutputTextDone(_OfPart, tag="response.output_text.done"):
    """The text of a part is whole."""

    text: str
    logprobs: list[Any] = field(default_factory=list[Any])


class RefusalDelta(_OfPart, tag="response.refusal.delta"):
    """Some more of a refusal."""

    delta: str


class RefusalDone(_OfPart, tag="response.refusal.done"):
    """A refusal is whole."""

    refusal: str


class ReasoningTextDelta(_OfPart, tag="response.reasoning_text.delta"):
    """Some more open reasoning."""

    delta: str


class ReasoningTextDone(_OfPart, tag="response.reasoning_text.done"):
    """The text of a reasoning part is whole."""

    text: str


class _OfSummary(_OfItem):
    summary_index: int


class SummaryPartAdded(_OfSummary, tag="response.reasoning_summary_part.added"):
    """A part of a summary begins."""

    part: SummaryText


class SummaryPartDone(_OfSummary, tag="response.reasoning_summary_part.done"):
    """A part of a summary is whole."""

    part: SummaryText


class SummaryTextDelta(_OfSummary, tag="response.reasoning_summary_text.delta"):
    """Some more of a summary."""

    delta: str


class SummaryTextDone(_OfSummary, tag="response.reasoning_summary_text.done"):
    """The text of a summary's part is whole."""

    text: str


# ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class FunctionArgumentsDelta(_OfItem, tag="response.function_call_arguments.delta"):
    """Some more of a function call's arguments."""

    delta: str


class FunctionArgumentsDone(_OfItem, tag="response.function_call_arguments.done"):
    """The arguments are whole."""

    arguments: str


class CustomInputDelta(_OfItem, tag="response.custom_tool_call_input.delta"):
    """Some more of a custom tool's input."""

    delta: str


class CustomInputDone(_OfItem, tag="response.custom_tool_call_input.done"):
    """The input is whole."""

    input: str


class ToolProgress(Struct, kw_only=True):
    """An event of a tool that is run here, such as `response.code_interpreter_call.interpreting`.

    One struct for all of them, because their names differ and their shape does not; `fields` is what goes
    beside `item_id` and `output_index`.
    """

    type: str
    item_id: str
    output_index: int
    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    sequence_number: int = -1


AnyEvent: TypeAlias = Event | ToolProgress


def _named(base: type[Event]) -> Iterator[type[Event]]:
    for event in base.__subclasses__():
        yield from _named(event) if event.__subclasses__() else (event,)


EVENTS = tuple(_named(Event))
"""All of them, but for those of tools that are run here."""

ENDINGS = (ResponseCompleted, ResponseIncomplete, ResponseFailed)


def kind_of(event: AnyEvent) -> str:
    """What the wire calls it."""
    return event.type if isinstance(event, ToolProgress) else str(event.__struct_config__.tag)


def to_json(event: AnyEvent) -> bytes:
    """The event's JSON."""
    if isinstance(event, ToolProgress):
        plain = msgspec.to_builtins(event)
        return msgspec.json.encode(plain | plain.pop("fields"))
    return msgspec.json.encode(event)


def to_sse(event: AnyEvent) -> bytes:
    """The event as a frame of a stream."""
    return encode_frame(kind_of(event), to_json(event))
