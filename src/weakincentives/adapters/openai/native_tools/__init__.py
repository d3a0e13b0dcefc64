"""Native tools of OpenAI: run by the provider, or by the client in a provider-specific form. Sends no request.

capability             `Capability`: base class of all tools
registry               finds the capabilities
validation             type check of configurations
*_section              one tool: section, configuration, types of its calls and results, wire format
code_interpreter_tool  `OpenAICodeInterpreterTool` and the container forms
v4a                    patches of `apply_patch`
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
