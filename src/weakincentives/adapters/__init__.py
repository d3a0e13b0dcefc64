"""From a prompt to a provider and back. `core` is the port; each provider has a room of its own beside it."""

from __future__ import annotations

from weakincentives.adapters.core import Connection, Evaluation, PromptResponse, ProviderAdapter
from weakincentives.adapters.scripted import ScriptedAdapter
from weakincentives.adapters.throttle import ThrottlePolicy
from weakincentives.adapters.turn import (
    ModelReply,
    ModelRequest,
    NamedTool,
    NativeCall,
    ToolCall,
    ToolChoice,
    ToolOutput,
)

__all__ = [
    "Connection",
    "Evaluation",
    "ModelReply",
    "ModelRequest",
    "NamedTool",
    "NativeCall",
    "PromptResponse",
    "ProviderAdapter",
    "ScriptedAdapter",
    "ThrottlePolicy",
    "ToolCall",
    "ToolChoice",
    "ToolOutput",
]
