"""The tools that OpenAI runs, or leaves to us in a form of its own: one file each. Nothing here sends a request.

capability      what each of them is to the adapter
registry        finds them
fitting         whether a configuration holds what it should
*_section       one tool: its section, its configuration, the types of its calls and results, its wire
"""

from __future__ import annotations

from weakincentives.adapters.openai.native_tools.apply_patch_section import (
    ApplyPatchCall,
    ApplyPatchConfig,
    ApplyPatchResult,
    OpenAIApplyPatchSection,
)
from weakincentives.adapters.openai.native_tools.capability import Capability, NativeSection
from weakincentives.adapters.openai.native_tools.code_interpreter_section import OpenAICodeInterpreterSection
from weakincentives.adapters.openai.native_tools.file_search_section import (
    FileHit,
    FileSearchCall,
    FileSearchConfig,
    FileSearchResult,
    OpenAIFileSearchSection,
)
from weakincentives.adapters.openai.native_tools.mcp_section import (
    McpApproval,
    McpCall,
    McpConfig,
    McpDecision,
    McpResult,
    OpenAIMcpSection,
)
from weakincentives.adapters.openai.native_tools.shell_section import OpenAIShellSection, ShellConfig
from weakincentives.adapters.openai.native_tools.web_search_section import (
    OpenAIWebSearchSection,
    WebSearchCall,
    WebSearchConfig,
    WebSearchResult,
)

__all__ = [
    "ApplyPatchCall",
    "ApplyPatchConfig",
    "ApplyPatchResult",
    "Capability",
    "FileHit",
    "FileSearchCall",
    "FileSearchConfig",
    "FileSearchResult",
    "McpApproval",
    "McpCall",
    "McpConfig",
    "McpDecision",
    "McpResult",
    "NativeSection",
    "OpenAIApplyPatchSection",
    "OpenAICodeInterpreterSection",
    "OpenAIFileSearchSection",
    "OpenAIMcpSection",
    "OpenAIShellSection",
    "OpenAIWebSearchSection",
    "ShellConfig",
    "WebSearchCall",
    "WebSearchConfig",
    "WebSearchResult",
]
