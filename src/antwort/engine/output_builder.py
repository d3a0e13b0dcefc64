"""Turns pieces of a model's answer into items and their events, in the order that the wire demands. Pure.

    Writer            gives items their places; knows the one that is open
    OpenMessage       text and refusals
    OpenReasoning     thoughts and summaries of them
    OpenCall          a call of the client's that the model is writing

A message or reasoning stays open until something else begins. Calls may be open side
by side, because models write several at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

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
)
from antwort.engine.ports import (
    ReasoningPiece,
    RefusalPiece,
    SealedReasoning,
    SummaryPiece,
    TextPiece,
)

Speech: TypeAlias = TextPiece | RefusalPiece
Thought: TypeAlias = ReasoningPiece | SummaryPiece | SealedReasoning
Annotate: TypeAlias = Callable[[str], Sequence[Annotation]]
Raw: TypeAlias = dict[str, Any]


class OpenMessage:
    """A message that the model is writing; its last part is open."""

    def __init__(self, index: int, annotate: Annotate) -> None:
        self.index = index
        self._annotate = annotate
        self._message = Message(id=new_id("msg_"))
        self._chunks: list[str] = []
        self._logprobs: list[Raw] = []

    def item(self) -> Raw:
        return msgspec.to_builtins(self._message)

    def write(self, piece: Speech) -> Iterator[AnyEvent]:
        """Some more, in a part of its kind."""
        kind = OutputText if isinstance(piece, TextPiece) else Refusal
        content = self._message.content
        if not content or type(content[-1]) is not kind:
            yield from self._close_part()
            content.append(kind())
            yield wire.ContentPartAdded(**self._where(), part=kind())
        self._chunks.append(piece.text)
        if isinstance(piece, TextPiece):
            self._logprobs += piece.logprobs
            yield wire.OutputTextDelta(**self._where(), delta=piece.text, logprobs=list(piece.logprobs))
        else:
            yield wire.RefusalDelta(**self._where(), delta=piece.text)

    def close(self, status: Status) -> Iterator[AnyEvent]:
        """The message is whole, or stays as far as it is."""
        yield from self._close_part()
        self._message.status = status

    def _close_part(self) -> Iterator[AnyEvent]:
        if not self._message.content:
            return
        part, text = self._message.content[-1], "".join(self._chunks)
        self._chunks = []
        if isinstance(part, Refusal):
            part.refusal = text
            yield wire.RefusalDone(**self._where(), refusal=text)
        else:
            part.text = text
            part.logprobs, self._logprobs = self._logprobs, []
            part.annotations = list(self._annotate(text))
            for at, annotation in enumerate(part.annotations):
                yield wire.OutputTextAnnotationAdded(**self._where(), annotation_index=at, annotation=annotation)
            yield wire.OutputTextDone(**self._where(), text=text, logprobs=part.logprobs)
        yield wire.ContentPartDone(**self._where(), part=part)

    def _where(self) -> Raw:
        return {
            "item_id": self._message.id,
            "output_index": self.index,
            "content_index": len(self._message.content) - 1,
        }


class OpenReasoning:
    """Reasoning that the model is writing, in the open or summarized; its last part is open."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._reasoning = Reasoning(id=new_id("rs_"))
        self._part: ReasoningText | SummaryText | None = None
        self._chunks: list[str] = []

    def item(self) -> Raw:
        return msgspec.to_builtins(self._reasoning)

    def write(self, piece: Thought) -> Iterator[AnyEvent]:
        """Some more, in a part of its kind."""
        if isinstance(piece, SealedReasoning):
            self._reasoning.encrypted_content = piece.encrypted_content
            return
        kind = ReasoningText if isinstance(piece, ReasoningPiece) else SummaryText
        if not isinstance(self._part, kind):
            yield from self._close_part()
            yield self._open_part(kind())
        self._chunks.append(piece.text)
        if isinstance(self._part, ReasoningText):
            yield wire.ReasoningTextDelta(**self._where(), delta=piece.text)
        else:
            yield wire.SummaryTextDelta(**self._where(), delta=piece.text)

    def close(self, status: Status) -> Iterator[AnyEvent]:
        """The reasoning is whole. Its status is not said, as OpenAI does not say it."""
        _ = status
        yield from self._close_part()

    def _open_part(self, part: ReasoningText | SummaryText) -> AnyEvent:
        self._part = part
        if isinstance(part, SummaryText):
            self._reasoning.summary.append(part)
            return wire.SummaryPartAdded(**self._where(), part=SummaryText())
        if not isinstance(self._reasoning.content, list):
            self._reasoning.content = []
        self._reasoning.content.append(part)
        return wire.ContentPartAdded(**self._where(), part=ReasoningText())

    def _close_part(self) -> Iterator[AnyEvent]:
        part, text = self._part, "".join(self._chunks)
        self._chunks = []
        if part is None:
            return
        part.text = text
        if isinstance(part, SummaryText):
            yield wire.SummaryTextDone(**self._where(), text=text)
            yield wire.SummaryPartDone(**self._where(), part=part)
        else:
            yield wire.ReasoningTextDone(**self._where(), text=text)
            yield wire.ContentPartDone(**self._where(), part=part)
        self._part = None

    def _where(self) -> Raw:
        where: Raw = {"item_id": self._reasoning.id, "output_index": self.index}
        if isinstance(self._part, SummaryText):
            return where | {"summary_index": len(self._reasoning.summary) - 1}
        content = self._reasoning.content
        return where | {"content_index": len(content) - 1 if isinstance(content, list) else 0}


class OpenCall:
    """A call of the client's: a function with JSON arguments, or a custom tool with free text."""

    def __init__(self, index: int, *, name: str, call_id: str, custom: bool) -> None:
        self.index = index
        self.name = name
        self.call_id = call_id
        self._custom = custom
        self._id = new_id("ctc_" if custom else "fc_")
        self._chunks: list[str] = []

    @property
    def text(self) -> str:
        """What the model has written so far."""
        return "".join(self._chunks)

    def item(self, status: Status = "in_progress") -> Raw:
        if self._custom:
            call: CustomToolCall | FunctionCall = CustomToolCall(
                self._id, self.call_id, self.name, self.text, status=status
            )
        else:
            call = FunctionCall(self._id, self.call_id, self.name, self.text, status=status)
        return msgspec.to_builtins(call)

    def write(self, delta: str) -> Iterator[AnyEvent]:
        """Some more of the arguments."""
        if delta:
            self._chunks.append(delta)
            kind = wire.CustomInputDelta if self._custom else wire.FunctionArgumentsDelta
            yield kind(item_id=self._id, output_index=self.index, delta=delta)

    def close(self) -> AnyEvent:
        """The arguments are whole."""
        if self._custom:
            return wire.CustomInputDone(item_id=self._id, output_index=self.index, input=self.text)
        return wire.FunctionArgumentsDone(item_id=self._id, output_index=self.index, arguments=self.text)


@dataclass
class OutputBuilder:
    """The output so far: every item that was begun has its place, and keeps it."""

    annotate: Annotate = lambda _: ()
    output: list[Raw] = field(default_factory=list[Raw])
    _open: OpenMessage | OpenReasoning | None = None

    @property
    def next_index(self) -> int:
        """The place of the next item to begin; closing one needs no new place."""
        return len(self.output)

    def begin(self, item: Raw) -> AnyEvent:
        """Give an item its place."""
        self.output.append(item)
        return wire.OutputItemAdded(output_index=len(self.output) - 1, item=item)

    def end(self, index: int, item: Raw) -> AnyEvent:
        """An item is whole."""
        self.output[index] = item
        return wire.OutputItemDone(output_index=index, item=item)

    def write(self, piece: Speech | Thought) -> Iterator[AnyEvent]:
        """What the model says or thinks. An empty piece says nothing, and begins nothing."""
        if not (isinstance(piece, SealedReasoning) or piece.text or self._goes_on(piece)):
            return
        if isinstance(piece, (TextPiece, RefusalPiece)):
            if not isinstance(self._open, OpenMessage):
                yield from self._replace(OpenMessage(self.next_index, self.annotate))
            assert isinstance(self._open, OpenMessage)  # noqa: S101 - just opened
            yield from self._open.write(piece)
        else:
            if not isinstance(self._open, OpenReasoning):
                yield from self._replace(OpenReasoning(self.next_index))
            assert isinstance(self._open, OpenReasoning)  # noqa: S101 - just opened
            yield from self._open.write(piece)

    def _goes_on(self, piece: Speech | Thought) -> bool:
        """Whether an empty piece tells more of what is being said: a token may be half a character."""
        return isinstance(piece, TextPiece) and bool(piece.logprobs) and isinstance(self._open, OpenMessage)

    def close(self, status: Status = "completed") -> Iterator[AnyEvent]:
        """Close what is open."""
        if self._open is not None:
            yield from self._open.close(status)
            yield self.end(self._open.index, self._open.item())
            self._open = None

    def _replace(self, opened: OpenMessage | OpenReasoning) -> Iterator[AnyEvent]:
        yield from self.close()
        self._open = opened
        yield self.begin(opened.item())
