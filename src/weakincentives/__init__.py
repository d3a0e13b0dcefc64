"""Client library for LLM agents: typed prompts, tools, sessions and provider adapters.

    prompt      sections, tools and structured output: what is sent to the model
    runtime     `Session`: event store with slices and reducers
    adapters    `evaluate`: the agent loop; `adapters.openai` is the adapter for OpenAI's Responses API
    tools       ready-made tool sections, host mounts, shell executors
    filesystem  the `Filesystem` protocol and its implementations
    testing     a scripted model and conformance suites

The names below are loaded on first use, which keeps the import of the package fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weakincentives.budget import Budget, BudgetTracker, TokenUsage
    from weakincentives.deadlines import Deadline
    from weakincentives.errors import PromptEvaluationError, WinkError
    from weakincentives.frozen import FrozenDataclass
    from weakincentives.prompt import (
        MarkdownSection,
        NativeTool,
        Prompt,
        PromptTemplate,
        ProviderTool,
        Section,
        SectionVisibility,
        Tool,
        ToolContext,
        ToolExample,
        ToolResult,
    )
    from weakincentives.resources import ResourceRegistry
    from weakincentives.runtime import Session

    __version__: str

_MODULES = {
    "Budget": "budget",
    "BudgetTracker": "budget",
    "Deadline": "deadlines",
    "FrozenDataclass": "frozen",
    "PromptEvaluationError": "errors",
    "ResourceRegistry": "resources",
    "Session": "runtime",
    "TokenUsage": "budget",
    "WinkError": "errors",
}
"""The modules of the names that are not in `prompt`."""

__all__ = [
    "Budget",
    "BudgetTracker",
    "Deadline",
    "FrozenDataclass",
    "MarkdownSection",
    "NativeTool",
    "Prompt",
    "PromptEvaluationError",
    "PromptTemplate",
    "ProviderTool",
    "ResourceRegistry",
    "Section",
    "SectionVisibility",
    "Session",
    "TokenUsage",
    "Tool",
    "ToolContext",
    "ToolExample",
    "ToolResult",
    "WinkError",
    "__version__",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        return import_module("importlib.metadata").version(__name__)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES.get(name, 'prompt')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
