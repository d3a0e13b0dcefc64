"""Prompts: typed trees of sections with their tools, rendered to text. No I/O: nothing here runs a tool or a model."""

from __future__ import annotations

from weakincentives.prompt._types import SessionProtocol, SupportsDataclass, ToolRenderableResult
from weakincentives.prompt.disclosure import SectionOpened
from weakincentives.prompt.markdown import MarkdownSection
from weakincentives.prompt.native import NativeDeclaration
from weakincentives.prompt.overrides import (
    OverrideStore,
    PromptDescriptor,
    PromptOverrides,
    SectionOverride,
    ToolOverride,
)
from weakincentives.prompt.rendering import RenderedPrompt
from weakincentives.prompt.section import Section, SectionVisibility
from weakincentives.prompt.structured_output import OutputSchema, output_schema, parse_output
from weakincentives.prompt.template import Prompt, PromptTemplate
from weakincentives.prompt.tool import (
    NamedTool,
    NativeTool,
    ProviderTool,
    Tool,
    ToolChoice,
    ToolContext,
    ToolExample,
    ToolHandler,
    ToolSpec,
)
from weakincentives.prompt.tool_result import ToolResult

__all__ = [
    "MarkdownSection",
    "NamedTool",
    "NativeDeclaration",
    "NativeTool",
    "OutputSchema",
    "OverrideStore",
    "Prompt",
    "PromptDescriptor",
    "PromptOverrides",
    "PromptTemplate",
    "ProviderTool",
    "RenderedPrompt",
    "Section",
    "SectionOpened",
    "SectionOverride",
    "SectionVisibility",
    "SessionProtocol",
    "SupportsDataclass",
    "Tool",
    "ToolChoice",
    "ToolContext",
    "ToolExample",
    "ToolHandler",
    "ToolOverride",
    "ToolRenderableResult",
    "ToolResult",
    "ToolSpec",
    "output_schema",
    "parse_output",
]
