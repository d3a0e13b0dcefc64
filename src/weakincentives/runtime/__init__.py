"""Event store: sessions with slices and reducers, events, dispatchers and transcripts.

session      `Session`: an event store; holds no conversation
slices       `SliceView`, the items of one type; reducers and their operations
events       the events of an evaluation
dispatcher   publish/subscribe: `Dispatcher`, also called event bus
transcript   the events of a session as JSON lines
"""

from __future__ import annotations

from weakincentives.runtime.dispatcher import Dispatcher, DispatchResult, InProcessDispatcher, NullDispatcher
from weakincentives.runtime.events import (
    CompactionRebuilt,
    CompactionUnavailable,
    ContainerRecreated,
    ContextCompacted,
    ModelProgress,
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
    "CompactionRebuilt",
    "CompactionUnavailable",
    "ContainerRecreated",
    "ContextCompacted",
    "DispatchResult",
    "Dispatcher",
    "InProcessDispatcher",
    "ModelProgress",
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
