"""State of a response that is continued: what the steps of its checkpoint add up to. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from antwort.api.items import Raw
from antwort.engine.checkpoint.steps import (
    BegunCall,
    EndedCall,
    HistoryEntry,
    SavedCompaction,
    SavedReply,
    Totals,
    decode_step,
)
from antwort.engine.stores import StoredStep


class UnreadableCheckpoint(Exception):
    """A stored step is not valid: it was written by another version, or it is damaged."""


@dataclass
class OpenReply:
    """A reply some of whose hosted calls have begun or ended."""

    saved: SavedReply
    outputs: dict[int, str] = field(default_factory=dict[int, str])
    """What the model reads of the calls that have ended, by their keys."""
    awaiting: set[int] = field(default_factory=set[int])
    """The keys of those that wait for the client."""
    broken: set[int] = field(default_factory=set[int])
    """The keys of those with malformed arguments."""
    beside: dict[int, BegunCall] = field(default_factory=dict[int, BegunCall])
    """Calls that were started, by their keys, whose items have not begun."""
    last: int = -1
    """The key of the call that began last. What is before it has been sent."""


@dataclass
class Checkpoint:
    """The state that a response is continued from."""

    totals: Totals = field(default_factory=Totals)
    items: list[Raw] = field(default_factory=list[Raw])
    """The output items that have ended."""
    history: list[HistoryEntry] = field(default_factory=list[HistoryEntry])
    """What follows the history of the request, or the window of the compaction."""
    compaction: SavedCompaction | None = None
    reply: OpenReply | None = None
    begun: BegunCall | None = None
    """The call that had begun, and has no end: it may have run."""
    sequence: int = -1
    """The last event that the state includes."""
    steps: int = 0
    """The number of the next step."""

    @property
    def last_event(self) -> int | None:
        """The last event that stays. None if all do: those behind the last step are progress of the begun call."""
        return None if self.begun is not None else self.sequence

    @property
    def output(self) -> list[Raw]:
        """The output items. A call that had begun is interrupted."""
        return self.items if self.begun is None else [*self.items, self.begun.item]


def read_checkpoint(steps: Sequence[StoredStep]) -> Checkpoint | None:
    """The state after these steps; None without steps. `UnreadableCheckpoint` if one is missing or invalid."""
    if not steps:
        return None
    state = Checkpoint()
    for number, stored in enumerate(steps):
        if stored.number != number:
            raise UnreadableCheckpoint(f"step {number} is missing")
        try:
            _apply(state, stored)
        except (msgspec.MsgspecError, LookupError) as error:
            raise UnreadableCheckpoint(f"step {number} is not valid") from error
    return state


def _apply(state: Checkpoint, stored: StoredStep) -> None:
    step = decode_step(stored.body)
    state.totals, state.sequence, state.steps = step.totals, stored.sequence, stored.number + 1
    state.items += step.items
    if step.compaction is not None:
        state.compaction, state.history, state.reply = step.compaction, [], None
    state.history += step.history
    if step.reply is not None:
        state.reply = OpenReply(step.reply)
    state.begun = step.begun
    if (call := step.begun or step.ended) is not None:
        if state.reply is None:
            raise LookupError("a call without a reply")
        state.reply.last = call.key
        state.reply.beside |= {one.key: one for one in step.beside}
        state.reply.beside.pop(call.key, None)
        state.reply.outputs[call.key] = call.text
        if isinstance(call, EndedCall) and call.awaits_client:
            state.reply.awaiting.add(call.key)
        if isinstance(call, EndedCall) and call.is_broken:
            state.reply.broken.add(call.key)
