"""What happens during an evaluation, as events. Also the door to the dispatchers that carry them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias, final
from uuid import uuid4

from weakincentives.budget import TokenUsage
from weakincentives.clock import SYSTEM_CLOCK
from weakincentives.prompt import PromptDescriptor, ToolResult
from weakincentives.runtime.dispatcher import (
    Dispatcher,
    DispatchResult,
    InProcessDispatcher,
    InProcessEventBus,
    NullDispatcher,
    NullEventBus,
)

__all__ = [
    "ContainerRecreated",
    "DispatchResult",
    "Dispatcher",
    "InProcessDispatcher",
    "InProcessEventBus",
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

Origin: TypeAlias = Literal["client", "provider"]


def _event_id() -> str:
    return uuid4().hex


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRendered:
    """A prompt was turned into text and tools, and is about to be sent."""

    prompt_ns: str
    prompt_key: str
    prompt_name: str
    adapter: str
    text: str
    tool_names: tuple[str, ...] = ()
    native_tool_names: tuple[str, ...] = ()
    descriptor: PromptDescriptor | None = None
    session_id: str | None = None
    created_at: datetime = field(default_factory=SYSTEM_CLOCK.now)
    event_id: str = field(default_factory=_event_id)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResponded:
    """The model answered one request of the loop: some text, some tool calls, or both."""

    prompt_name: str
    adapter: str
    turn: int
    text: str | None = None
    tool_calls: tuple[str, ...] = ()
    usage: TokenUsage = field(default_factory=TokenUsage)
    session_id: str | None = None
    created_at: datetime = field(default_factory=SYSTEM_CLOCK.now)
    event_id: str = field(default_factory=_event_id)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolInvoked:
    """A tool ran. The same event whoever ran it; `origin` says who, for those who ask."""

    prompt_name: str
    adapter: str
    name: str
    params: Any
    result: ToolResult[Any]
    call_id: str | None = None
    rendered_output: str = ""
    session_id: str | None = None
    created_at: datetime = field(default_factory=SYSTEM_CLOCK.now)
    event_id: str = field(default_factory=_event_id)
    origin: Origin = "client"
    provider: str | None = None
    capability: str | None = None

    @property
    def success(self) -> bool:
        return self.result.success


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PromptExecuted:
    """An evaluation ended with an answer. `result` is the adapter's `PromptResponse`."""

    prompt_name: str
    adapter: str
    result: Any
    usage: TokenUsage = field(default_factory=TokenUsage)
    session_id: str | None = None
    created_at: datetime = field(default_factory=SYSTEM_CLOCK.now)
    event_id: str = field(default_factory=_event_id)


@final
@dataclass(frozen=True, slots=True)
class ContainerRecreated:
    """A container was gone, and another one is in its place. Variables of code that ran in it are lost in any case.

    `restored` are the paths that were put back as we had them, `lost` those whose newest content we do not have. A path
    that is in both was put back as it was before code in the container changed it.
    """

    old_id: str
    new_id: str
    restored: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    reason: str = ""
    session_id: str | None = None
    created_at: datetime = field(default_factory=SYSTEM_CLOCK.now)
    event_id: str = field(default_factory=_event_id)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TransferProgress:
    """Files are on their way into a container, or out of it; told some times a second, and when it is over."""

    direction: Literal["upload", "download"]
    container_id: str
    files: int
    bytes: int
    total_files: int
    total_bytes: int
    session_id: str | None = None
    created_at: datetime = field(default_factory=SYSTEM_CLOCK.now)
    event_id: str = field(default_factory=_event_id)

    @property
    def done(self) -> bool:
        return self.files >= self.total_files


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceSynced:
    """The files of a container came back into `directory`: what is different there now.

    `refused` are names that cannot be there, each with the reason; `lost` is what is known to have been in a container
    that was gone before it could be asked.
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
    session_id: str | None = None
    created_at: datetime = field(default_factory=SYSTEM_CLOCK.now)
    event_id: str = field(default_factory=_event_id)

    def render(self) -> str:
        """In one line."""
        counts = {
            "added": len(self.added),
            "changed": len(self.changed),
            "removed": len(self.removed),
            "unchanged": self.unchanged,
            "refused": len(self.refused),
            "lost": len(self.lost),
        }
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "no files"
