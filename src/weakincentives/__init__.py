"""Agents as typed prompts, sessions and adapters.

An agent is a tree of sections that carry their tools (`prompt`), a session that
keeps what happened (`runtime`), and an adapter that talks to a provider
(`adapters`). The names below are the ones most programs need; each room has more.
They are loaded on first use, so importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weakincentives.budget import Budget, BudgetTracker, TokenUsage
    from weakincentives.deadlines import Deadline
    from weakincentives.errors import PromptEvaluationError, WinkError
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

_HOMES = {
    "Budget": "budget",
    "BudgetTracker": "budget",
    "Deadline": "deadlines",
    "MarkdownSection": "prompt",
    "NativeTool": "prompt",
    "Prompt": "prompt",
    "PromptEvaluationError": "errors",
    "PromptTemplate": "prompt",
    "ProviderTool": "prompt",
    "ResourceRegistry": "resources",
    "Section": "prompt",
    "SectionVisibility": "prompt",
    "Session": "runtime",
    "TokenUsage": "budget",
    "Tool": "prompt",
    "ToolContext": "prompt",
    "ToolExample": "prompt",
    "ToolResult": "prompt",
    "WinkError": "errors",
}

__all__ = [
    "Budget",
    "BudgetTracker",
    "Deadline",
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
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
