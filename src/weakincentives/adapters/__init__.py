"""Provider adapters: `evaluate` sends a prompt to a model provider and runs the agent loop.

    core         `ProviderAdapter`, the base class of all adapters, and the driver of the loop
    turn         the agent loop as a generator without I/O
    tool_calls   runs tools, with rollback after a failure
    retry        retries with exponential back-off
    audit        dispatches the events of an evaluation
    openai       the adapter for OpenAI's Responses API

`weakincentives.testing` has an adapter whose model is a script.
"""

from __future__ import annotations

from weakincentives.adapters.core import Connection, Evaluation, PromptResponse, ProviderAdapter
from weakincentives.adapters.retry import ThrottlePolicy
from weakincentives.adapters.turn import (
    ModelReply,
    ModelRequest,
    NativeCall,
    ToolCall,
    ToolOutput,
)
from weakincentives.prompt import NamedTool, ToolChoice

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
