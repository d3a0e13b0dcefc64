"""Builds output items and their events from the pieces of a model's reply, in the order of the wire. Pure.

    OutputBuilder     assigns output indexes; holds the item that is open
    OpenMessage       text and refusals
    OpenReasoning     reasoning text and summaries
    OpenCall          a client-side call that the model is writing

A message or reasoning item stays open until another item begins: with a piece of the other kind, a call, or an
`ItemPiece`. At most one item is open: `reply.queue` keeps what a model writes of several calls at once in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET

from antwort.api import events as wire
from antwort.api.events import AnyEvent
from antwort.api.ids import new_id
from antwort.api.items import (
    Annotation,
    CustomToolCall,
    FunctionCall,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
    Refusal,
    Status,
    SummaryText,
    ToolSearchCall,
)
from antwort.engine.ports import (
    EncryptedReasoning,
    ItemPiece,
    ReasoningPiece,
    RefusalPiece,
    SummaryPiece,
    TextAnnotator,
    TextPiece,
)

TextOrRefusal: TypeAlias = TextPiece | RefusalPiece
ReasoningDelta: TypeAlias = ReasoningPiece | SummaryPiece | EncryptedReasoning
NewAnnotator: TypeAlias = Callable[[], TextAnnotator]
"""Makes the annotator of one text."""
SealReasoning: TypeAlias = Callable[[str, str], str]
"""The `encrypted_content` of a reasoning item, by its id and its text."""
Raw: TypeAlias = dict[str, Any]


class OpenMessage:
    """A message that the model is writing; its last part is open."""

    def __init__(self, index: int, new_annotator: NewAnnotator | None = None, phase: str | None = None) -> None:
        self.index = index
        self._new_annotator = new_annotator
        self._annotator: TextAnnotator | None = None
        """Of the open part, if it is text."""
        self._message = Message(id=new_id("msg_"))
        self.set_phase(phase)
        self._chunks: list[str] = []
        self._logprobs: list[Raw] = []

    def item(self) -> Raw:
        return msgspec.to_builtins(self._message)

    def set_phase(self, phase: str | None) -> None:
        self._message.phase = UNSET if phase is None else phase

    def write(self, piece: TextOrRefusal) -> list[AnyEvent]:
        """Append to the open part, or to a new part of the piece's kind."""
        events: list[AnyEvent] = []
        kind = OutputText if isinstance(piece, TextPiece) else Refusal
        content = self._message.content
        if not content or type(content[-1]) is not kind:
            events += self._close_part()
            content.append(kind())
            self._annotator = self._new_annotator() if self._new_annotator is not None and kind is OutputText else None
            events.append(wire.ContentPartAdded(**self._location(), part=kind()))
        self._chunks.append(piece.text)
        if isinstance(piece, TextPiece):
            self._logprobs += piece.logprobs
            events.append(wire.OutputTextDelta(**self._location(), delta=piece.text, logprobs=list(piece.logprobs)))
            if self._annotator is not None:
                events += self._annotate(self._annotator.feed(piece.text))
        else:
            events.append(wire.RefusalDelta(**self._location(), delta=piece.text))
        return events

    def close(self, status: Status) -> list[AnyEvent]:
        """Close the open part and set the status of the message."""
        self._message.status = status
        return self._close_part()

    def _close_part(self) -> list[AnyEvent]:
        if not self._message.content:
            return []
        events: list[AnyEvent] = []
        part, text = self._message.content[-1], "".join(self._chunks)
        self._chunks = []
        if isinstance(part, Refusal):
            part.refusal = text
            events.append(wire.RefusalDone(**self._location(), refusal=text))
        else:
            part.text = text
            part.logprobs, self._logprobs = self._logprobs, []
            if self._annotator is not None:
                events += self._annotate(self._annotator.finish(text))
            events.append(wire.OutputTextDone(**self._location(), text=text, logprobs=part.logprobs))
        events.append(wire.ContentPartDone(**self._location(), part=part))
        return events

    def _annotate(self, found: Sequence[Annotation]) -> list[AnyEvent]:
        """Add citations to the open part."""
        part = self._message.content[-1]
        assert isinstance(part, OutputText)  # noqa: S101 - only text has an annotator
        first = len(part.annotations)
        part.annotations += found
        return [
            wire.OutputTextAnnotationAdded(**self._location(), annotation_index=at, annotation=annotation)
            for at, annotation in enumerate(found, first)
        ]

    def _location(self) -> Raw:
        last = len(self._message.content) - 1
        return {"item_id": self._message.id, "output_index": self.index, "content_index": last}


class OpenReasoning:
    """A reasoning item that the model is writing, text or summary; its last part is open.

    With `as_summary` the text is written as the summary, in place of the content: clients that show both would show it
    twice.
    """

    def __init__(self, index: int, seal: SealReasoning | None = None, *, as_summary: bool = False) -> None:
        self.index = index
        self._seal = seal
        self._as_summary = as_summary
        self._reasoning = Reasoning(id=new_id("rs_"))
        self._part: ReasoningText | SummaryText | None = None
        self._is_text = False
        """Whether the open part is of reasoning text, also if it is written as a summary."""
        self._summary_part = 0
        """Of the last summary piece: the index of its part at the upstream."""
        self._chunks: list[str] = []
        self._texts: list[str] = []

    def item(self) -> Raw:
        return msgspec.to_builtins(self._reasoning)

    def write(self, piece: ReasoningDelta) -> list[AnyEvent]:
        """Append to the open part, or to a new one for another kind of piece or another part of the summary."""
        if isinstance(piece, EncryptedReasoning):
            self._reasoning.encrypted_content = piece.encrypted_content
            return []
        events: list[AnyEvent] = []
        is_text = isinstance(piece, ReasoningPiece)
        summary_part = piece.part if isinstance(piece, SummaryPiece) else self._summary_part
        if self._part is None or (is_text, summary_part) != (self._is_text, self._summary_part):
            events += self._close_part()
            self._is_text, self._summary_part = is_text, summary_part
            events.append(self._open_part(ReasoningText() if is_text and not self._as_summary else SummaryText()))
        self._chunks.append(piece.text)
        if isinstance(self._part, ReasoningText):
            events.append(wire.ReasoningTextDelta(**self._location(), delta=piece.text))
        else:
            events.append(wire.SummaryTextDelta(**self._location(), delta=piece.text))
        return events

    def close(self, status: Status) -> list[AnyEvent]:
        """Close the open part. A reasoning item has no status, as on OpenAI's wire."""
        _ = status
        events = self._close_part()
        if self._seal is not None and self._texts and not self._reasoning.encrypted_content:
            self._reasoning.encrypted_content = self._seal(self._reasoning.id, "\n".join(self._texts))
        return events

    def _open_part(self, part: ReasoningText | SummaryText) -> AnyEvent:
        self._part = part
        if isinstance(part, SummaryText):
            self._reasoning.summary.append(part)
            return wire.SummaryPartAdded(**self._location(), part=SummaryText())
        if not isinstance(self._reasoning.content, list):
            self._reasoning.content = []
        self._reasoning.content.append(part)
        return wire.ContentPartAdded(**self._location(), part=ReasoningText())

    def _close_part(self) -> list[AnyEvent]:
        part, text = self._part, "".join(self._chunks)
        self._chunks = []
        if part is None:
            return []
        part.text, at = text, self._location()
        self._part = None
        if self._is_text:
            self._texts.append(text)
        if isinstance(part, SummaryText):
            return [wire.SummaryTextDone(**at, text=text), wire.SummaryPartDone(**at, part=part)]
        return [wire.ReasoningTextDone(**at, text=text), wire.ContentPartDone(**at, part=part)]

    def _location(self) -> Raw:
        where: Raw = {"item_id": self._reasoning.id, "output_index": self.index}
        if isinstance(self._part, SummaryText):
            return where | {"summary_index": len(self._reasoning.summary) - 1}
        content = self._reasoning.content
        return where | {"content_index": len(content) - 1 if isinstance(content, list) else 0}


class OpenCall:
    """A client-side call: a function with JSON arguments, a custom tool with free text, or a tool search."""

    def __init__(
        self,
        index: int,
        *,
        name: str,
        call_id: str,
        is_custom: bool = False,
        namespace: str | None = None,
        is_search: bool = False,
    ) -> None:
        self.index = index
        self.name = name
        self.call_id = call_id
        self._is_custom = is_custom
        self._namespace = namespace or UNSET
        self._is_search = is_search
        self._id = new_id("tsc_" if is_search else "ctc_" if is_custom else "fc_")
        self._chunks: list[str] = []

    @property
    def text(self) -> str:
        """The arguments so far."""
        return "".join(self._chunks)

    def item(self, status: Status = "in_progress") -> Raw:
        if self._is_search:
            arguments = {} if status == "in_progress" else _as_object(self.text)
            return msgspec.to_builtins(ToolSearchCall(self._id, self.call_id, arguments, status))
        kind = CustomToolCall if self._is_custom else FunctionCall
        return msgspec.to_builtins(kind(self._id, self.call_id, self.name, self.text, status, self._namespace))

    def write(self, delta: str) -> list[AnyEvent]:
        """Append to the arguments. An empty delta makes no event, and neither does a tool search."""
        if not delta:
            return []
        self._chunks.append(delta)
        if self._is_search:
            return []
        kind = wire.CustomInputDelta if self._is_custom else wire.FunctionArgumentsDelta
        return [kind(item_id=self._id, output_index=self.index, delta=delta)]

    def close(self) -> list[AnyEvent]:
        """The arguments are complete."""
        if self._is_search:
            return []
        if self._is_custom:
            return [wire.CustomInputDone(item_id=self._id, output_index=self.index, input=self.text)]
        return [wire.FunctionArgumentsDone(item_id=self._id, output_index=self.index, arguments=self.text)]


def _as_object(arguments: str) -> Raw:
    """The arguments of a tool search, which are an object on the wire, also if the model wrote something else."""
    try:
        return msgspec.json.decode(arguments or "{}", type=Raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return {"not_json": arguments}


@dataclass
class OutputBuilder:
    """The output so far. An item keeps the output index that it got when it began."""

    new_annotator: NewAnnotator | None = None
    seal_reasoning: SealReasoning | None = None
    reasoning_as_summary: bool = False
    output: list[Raw] = field(default_factory=list[Raw])
    _open: OpenMessage | OpenReasoning | None = None
    _item: ItemPiece | None = None
    """The upstream's item that the next piece belongs to, if the upstream has items."""

    @property
    def next_index(self) -> int:
        """The output index of the next item."""
        return len(self.output)

    def begin(self, item: Raw) -> AnyEvent:
        """Append an item to the output."""
        self.output.append(item)
        return wire.OutputItemAdded(output_index=len(self.output) - 1, item=item)

    def add(self, item: Raw) -> list[AnyEvent]:
        """Append an item that is complete, and close the open one before it."""
        return [*self.close(), self.begin(item), self.end(self.next_index - 1, item)]

    def end(self, index: int, item: Raw) -> AnyEvent:
        """Replace an item by its final version."""
        self.output[index] = item
        return wire.OutputItemDone(output_index=index, item=item)

    def write(self, piece: TextOrRefusal | ReasoningDelta | ItemPiece) -> list[AnyEvent]:
        """Events of a piece of text or reasoning. An empty piece makes no event and opens no item."""
        if isinstance(piece, ItemPiece):
            return self._continue_with(piece)
        if not (isinstance(piece, EncryptedReasoning) or piece.text or self._continues_token(piece)):
            return []
        events: list[AnyEvent] = []
        if isinstance(piece, (TextPiece, RefusalPiece)):
            if not isinstance(self._open, OpenMessage):
                phase = self._item.phase if self._item else None
                events += self._replace(OpenMessage(self.next_index, self.new_annotator, phase))
            assert isinstance(self._open, OpenMessage)  # noqa: S101 - just opened
            return events + self._open.write(piece)
        if not isinstance(self._open, OpenReasoning):
            opened = OpenReasoning(self.next_index, self.seal_reasoning, as_summary=self.reasoning_as_summary)
            events += self._replace(opened)
        assert isinstance(self._open, OpenReasoning)  # noqa: S101 - just opened
        return events + self._open.write(piece)

    def _continue_with(self, item: ItemPiece) -> list[AnyEvent]:
        """Close the open item if it is another one; else the piece may add the phase of the message."""
        is_other = self._item is None or self._item.index != item.index
        self._item = item
        if is_other:
            return self.close()
        if isinstance(self._open, OpenMessage):
            self._open.set_phase(item.phase)
        return []

    def _continues_token(self, piece: TextOrRefusal | ReasoningDelta) -> bool:
        """Whether an empty piece carries logprobs of the open message: a token may be half a character."""
        return isinstance(piece, TextPiece) and bool(piece.logprobs) and isinstance(self._open, OpenMessage)

    def close(self, status: Status = "completed") -> list[AnyEvent]:
        """Close the open item, if there is one."""
        if self._open is None:
            return []
        events = [*self._open.close(status), self.end(self._open.index, self._open.item())]
        self._open = None
        return events

    def _replace(self, opened: OpenMessage | OpenReasoning) -> list[AnyEvent]:
        events = self.close()
        self._open = opened
        return [*events, self.begin(opened.item())]
