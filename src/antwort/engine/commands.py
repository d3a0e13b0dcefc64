"""Commands of a turn to its driver, and what the driver sends back. Pure.

    Count(request)        ->  int           the input tokens of a request
    Ask(request)          ->  Piece         send a request to the model; the first piece of its reply
    NextPiece()           ->  Piece         the next piece; `Finished` is the last
    Open(call, …)         ->  GuardedCall   begin a hosted call; or a text: why the tool refuses it
    Run(call, beside)     ->  ToolDone      the reply is complete: run these calls, emit the events of the first one
    Continue(call)        ->  ToolDone      run it further, after a `NextItem` in place of its end
    Emit(events)          ->  None          send events to the client

`Run` and some `Emit` carry a `Step` of the checkpoint: that of `Run` must be durable before the call is run, that of
`Emit` is stored together with its last event. A `TurnLoop` that gets the `Checkpoint` of these steps continues the
response: a call that had begun is not run again.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from antwort.api.events import AnyEvent
from antwort.engine.checkpoint.steps import Step
from antwort.engine.hosted.guarded import GuardedCall, NamedCall
from antwort.engine.ports import ModelRequest, WholeCall


@dataclass(frozen=True)
class Count:
    """Count the input tokens of a request."""

    request: ModelRequest


@dataclass(frozen=True)
class Ask:
    """Send a request to the model; or to the model that writes summaries."""

    request: ModelRequest
    for_summary: bool = False


@dataclass(frozen=True)
class NextPiece:
    """Read the next piece of the reply."""


@dataclass(frozen=True)
class Open:
    """Begin a call of a hosted function. `tool_index` is the index of its tool in `tools`."""

    call: WholeCall
    tool_index: int


@dataclass(frozen=True)
class Run:
    """Run a call, and those `beside` it at the same time; or read one that was started beside another."""

    named: NamedCall
    beside: Sequence[NamedCall] = ()
    step: Step | None = None

    @property
    def call(self) -> GuardedCall:
        return self.named.call


@dataclass(frozen=True)
class Continue:
    """Run a call further, behind the item that it has begun."""

    call: GuardedCall


@dataclass(frozen=True)
class Emit:
    """Send events to the client."""

    events: Sequence[AnyEvent]
    step: Step | None = None


Command: TypeAlias = Count | Ask | NextPiece | Open | Run | Continue | Emit
Commands: TypeAlias = Generator[Command, Any, None]


class Cancelled(Exception):
    """The response was cancelled, or its client disconnected."""
