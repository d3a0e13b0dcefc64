"""Steps of a checkpoint: what changed in the state of a response since the step before, as JSON in a log. Pure.

`TurnLoop` makes a step where a hosted call begins (it is durable before the call is run) and ends, and after a
compaction. A step has only what is new, so that the cost of all steps grows with the output, not with its square.
The format is a promise: a server of a newer version continues a response that an older one has left.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from msgspec import Struct, field

from antwort.api.items import Raw
from antwort.api.responses import CompactionNote, Usage
from antwort.engine.ports import Piece, Progress

HistoryEntry: TypeAlias = int | dict[str, Any]
"""An item that the model gets: the index of an output item, or the item itself."""


class Totals(Struct, omit_defaults=True):
    """What the limits of a response count, and what has changed in the offer. Each step has all of it."""

    turns: int = 0
    hosted_calls: int = 0
    missed_demands: int = 0
    """How often a reply lacked the call that `tool_choice` demands."""
    summary_tokens: int = 0
    """The output tokens of summaries, which `max_output_tokens` does not limit."""
    usage: Usage | None = None
    web_requests: int = 0
    """The requests of web searches, for `tool_usage`."""
    is_choice_met: bool = False
    """A forced `tool_choice` is forced no more."""
    is_client_only: bool = False
    """Hosted functions are not offered any more."""
    repaired: list[str] = field(default_factory=list[str])
    """Functions whose broken calls the model was asked to make again."""
    withdrawn: list[str] = field(default_factory=list[str])
    """Those whose calls were broken again: they are not offered any more."""
    only: list[str] = field(default_factory=list[str])
    """The functions that are offered in the last request, if the client has calls to run already."""


class SavedCall(Struct, omit_defaults=True):
    """A call of a reply, as the model wrote it. `key` identifies it in the reply."""

    key: int
    name: str
    call_id: str
    arguments: str = ""
    refusal: str = ""
    is_broken: bool = False


class SavedReply(Struct, omit_defaults=True):
    """A complete reply of the model, whose first hosted call begins."""

    first_index: int
    """The output index of its first item."""
    usage: Usage
    calls: list[SavedCall]
    waiting: list[int | list[Piece]]
    """What is not sent yet, in order: the keys of calls, and pieces of text and reasoning."""


class BegunCall(Struct, omit_defaults=True):
    """A hosted call that is about to be run. `item` and `text` are its end if the server is stopped meanwhile."""

    key: int
    item: Raw
    text: str
    added: Raw | None = None
    """If its item has not begun: what it begins with…"""
    early: list[Progress] = field(default_factory=list[Progress])
    """…and its events up to the run."""


class EndedCall(Struct, omit_defaults=True):
    """A hosted call that has ended: its item is the last one of the step, `text` is what the model reads."""

    key: int
    text: str
    awaits_client: bool = False
    """The client has to act before the model reads of the call."""
    is_broken: bool = False


class SavedCompaction(Struct, omit_defaults=True):
    """A compaction. The window replaces the history, and the output items before `end` are part of it."""

    window: list[Raw]
    note: CompactionNote
    end: int
    is_last: bool = False
    """Nothing follows but the end of the response."""


class Step(Struct, omit_defaults=True):
    """One step."""

    totals: Totals
    items: list[Raw] = field(default_factory=list[Raw])
    """The output items that have ended."""
    history: list[HistoryEntry] = field(default_factory=list[HistoryEntry])
    """What was appended to the history of the model."""
    compaction: SavedCompaction | None = None
    reply: SavedReply | None = None
    begun: BegunCall | None = None
    beside: list[BegunCall] = field(default_factory=list[BegunCall])
    """Calls that run at the same time as the one that has begun. Their items begin later."""
    ended: EndedCall | None = None


encode_step = msgspec.json.Encoder().encode
decode_step = msgspec.json.Decoder(Step).decode
