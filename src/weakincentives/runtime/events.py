"""Event types of evaluations and workspaces. Re-exports the dispatchers."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias, final
from uuid import uuid4

from weakincentives.budget import TokenUsage
from weakincentives.clock import SYSTEM_CLOCK
from weakincentives.prompt import PromptDescriptor, ToolResult
from weakincentives.runtime.dispatcher import InProcessDispatcher, InProcessEventBus, NullDispatcher, NullEventBus

__all__ = [
    "CompactionMode",
    "CompactionRebuilt",
    "CompactionUnavailable",
    "ContainerRecreated",
    "ContextCompacted",
    "DeltaKind",
    "InProcessDispatcher",
    "InProcessEventBus",
    "ModelProgress",
    "ModelResponded",
    "NullDispatcher",
    "NullEventBus",
    "Origin",
    "PromptExecuted",
    "PromptRendered",
    "ToolInvoked",
    "TransferProgress",
    "WorkspaceSynced",
]

DeltaKind: TypeAlias = Literal["reasoning", "text", "code", "arguments", "output"]
Origin: TypeAlias = Literal["client", "provider"]
CompactionMode: TypeAlias = Literal["server", "client"]
"""Whether the provider compacted while it answered a request, or the client called the compaction endpoint."""


def _event_id() -> str:
    return uuid4().hex


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """The fields of all events."""

    session_id: str | None = None
    created_at: datetime = field(default_factory=SYSTEM_CLOCK.now)
    event_id: str = field(default_factory=_event_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class _EvaluationEvent(_Event):
    """The fields of all events of an evaluation."""

    prompt_name: str
    adapter: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRendered(_EvaluationEvent):
    """A prompt was rendered and is about to be sent."""

    prompt_ns: str
    prompt_key: str
    text: str
    tool_names: tuple[str, ...] = ()
    native_tool_names: tuple[str, ...] = ()
    descriptor: PromptDescriptor | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProgress(_EvaluationEvent):
    """A streamed part of a reply, from adapters that stream. Dispatched to subscribers and not stored in the session.

    `kind` is what the text is a part of: reasoning, message text, code or arguments of a tool call; `output` is what
    code that runs at the provider prints. A retried request starts again, with other item ids.
    """

    kind: DeltaKind
    text: str
    item_id: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResponded(_EvaluationEvent):
    """The model replied to one request of the loop, with text, tool calls, or both.

    `request_id` is the provider's id of that request (the header `x-request-id`); None if it sent none.
    """

    turn: int
    text: str | None = None
    tool_calls: tuple[str, ...] = ()
    usage: TokenUsage = field(default_factory=TokenUsage)
    request_id: str | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolInvoked(_EvaluationEvent):
    """A tool ran. `origin` says whether the client or the provider ran it."""

    name: str
    params: Any
    result: ToolResult[Any]
    call_id: str | None = None
    rendered_output: str = ""
    origin: Origin = "client"
    provider: str | None = None
    capability: str | None = None

    @property
    def success(self) -> bool:
        return self.result.success


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PromptExecuted(_EvaluationEvent):
    """An evaluation succeeded. `result` is the adapter's `PromptResponse`."""

    result: Any
    usage: TokenUsage = field(default_factory=TokenUsage)


@final
@dataclass(frozen=True, slots=True)
class ContainerRecreated(_Event):
    """A container expired and was replaced by a new one. The state of its interpreter is always lost.

    `restored` are the paths that were uploaded again, `lost` those whose latest content the client does not have. A
    path in both was restored to its content before code in the container changed it.
    """

    old_id: str
    new_id: str
    restored: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    reason: str = ""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TransferProgress(_Event):
    """Progress of an upload to or a download from a container; dispatched a few times per second and at the end."""

    direction: Literal["upload", "download"]
    container_id: str
    files: int
    bytes: int
    total_files: int
    total_bytes: int

    @property
    def done(self) -> bool:
        return self.files >= self.total_files


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceSynced(_Event):
    """The files of a container were synchronised into `directory`; lists the differences.

    `refused` are names that the host cannot store, each with the reason; `lost` are files that are known to have been
    in a container that expired before they could be downloaded.
    """

    container_id: str | None
    directory: Path
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    lost: tuple[str, ...] = ()
    unchanged: int = 0
    bytes: int = 0

    def render(self) -> str:
        """A one-line summary."""
        counts = {
            "added": len(self.added),
            "changed": len(self.changed),
            "removed": len(self.removed),
            "unchanged": self.unchanged,
            "refused": len(self.refused),
            "lost": len(self.lost),
        }
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "no files"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ContextCompacted(_Event):
    """A compaction replaced the history of a conversation by a shorter window.

    `tokens_before` are the input tokens of the last request before it; `tokens_after` is an estimate. `usage` is the
    cost of the compaction request. With mode "server" `tokens_before` is an estimate too, and `usage` is zero: the
    usage of the response includes the compaction.
    """

    mode: CompactionMode
    tokens_before: int
    tokens_after: int
    compaction_count: int
    items_before: int
    items_after: int
    usage: TokenUsage = field(default_factory=TokenUsage)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRebuilt(_Event):
    """The provider could not decrypt an item of the window, which was rebuilt from the plain transcript.

    `items` is the length of the new window. `truncated`: the transcript was too long and could not be compacted
    again, so that its oldest part is missing.
    """

    reason: str
    items: int
    truncated: bool = False


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionUnavailable(_Event):
    """The server supports neither form of compaction: the history is no longer compacted. Dispatched once."""

    reason: str
