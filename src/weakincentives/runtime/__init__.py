"""What happened: sessions, their slices and reducers, events and transcripts. Asks no model, runs no tool."""

from __future__ import annotations

from weakincentives.runtime.dispatcher import (
    Dispatcher,
    DispatchResult,
    InProcessDispatcher,
    NullDispatcher,
)
from weakincentives.runtime.events import (
    ContainerRecreated,
    ModelResponded,
    PromptExecuted,
    PromptRendered,
    ToolInvoked,
    TransferProgress,
    WorkspaceSynced,
)
from weakincentives.runtime.session import Session, Slice, Snapshot
from weakincentives.runtime.slices import (
    Append,
    Clear,
    Reducer,
    Replace,
    SliceOp,
    SliceView,
    append_event,
    replace_latest,
    upsert_by,
)
from weakincentives.runtime.transcript import Transcript, TranscriptEntry

__all__ = [
    "Append",
    "Clear",
    "ContainerRecreated",
    "DispatchResult",
    "Dispatcher",
    "InProcessDispatcher",
    "ModelResponded",
    "NullDispatcher",
    "PromptExecuted",
    "PromptRendered",
    "Reducer",
    "Replace",
    "Session",
    "Slice",
    "SliceOp",
    "SliceView",
    "Snapshot",
    "ToolInvoked",
    "Transcript",
    "TranscriptEntry",
    "TransferProgress",
    "WorkspaceSynced",
    "append_event",
    "replace_latest",
    "upsert_by",
]
