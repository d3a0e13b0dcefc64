"""From a prompt to a provider and back. `core` is the port; each provider has a room of its own beside it."""

from __future__ import annotations

from weakincentives.adapters.core import Connection, Evaluation, PromptResponse, ProviderAdapter
from weakincentives.adapters.retry import ThrottlePolicy
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
    "ThrottlePolicy",
    "ToolCall",
    "ToolChoice",
    "ToolOutput",
]
