"""What happens during an evaluation, as events. Also the door to the dispatchers that carry them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
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
