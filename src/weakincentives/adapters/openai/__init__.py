"""OpenAI's Responses API, spoken to OpenAI or to any server that speaks it. All wire literals stay in this room.

adapter           `OpenAIAdapter`; `conversation` is one evaluation's requests
config            how it is set up
offer             the tools of a prompt on the wire, and every reason to refuse one
native_tools/     the tools that the provider runs, one file each
replay, reading   what a request repeats; what an answer means (`wire`, `projection`)
citations         what an answer refers to, and how to get it
container_source  the seam for sections that bring a container
transport         the one door to OpenAI's SDK, which is loaded on first use
"""

from __future__ import annotations

from weakincentives.adapters.openai.adapter import OpenAIAdapter
from weakincentives.adapters.openai.citations import (
    Citation,
    ContainerFileCitation,
    FileCitation,
    UrlCitation,
    citations,
    download,
)
from weakincentives.adapters.openai.config import OpenAIClientConfig, OpenAIHostedToolsConfig, OpenAIModelConfig
from weakincentives.adapters.openai.container_source import ContainerSource, ContainerVisit
from weakincentives.adapters.openai.native_tools import (
    ApplyPatchConfig,
    FileSearchConfig,
    McpConfig,
    OpenAIApplyPatchSection,
    OpenAICodeInterpreterSection,
    OpenAIFileSearchSection,
    OpenAIMcpSection,
    OpenAIShellSection,
    OpenAIWebSearchSection,
    ShellConfig,
    WebSearchConfig,
)

__all__ = [
    "ApplyPatchConfig",
    "Citation",
    "ContainerFileCitation",
    "ContainerSource",
    "ContainerVisit",
    "FileCitation",
    "FileSearchConfig",
    "McpConfig",
    "OpenAIAdapter",
    "OpenAIApplyPatchSection",
    "OpenAIClientConfig",
    "OpenAICodeInterpreterSection",
    "OpenAIFileSearchSection",
    "OpenAIHostedToolsConfig",
    "OpenAIMcpSection",
    "OpenAIModelConfig",
    "OpenAIShellSection",
    "OpenAIWebSearchSection",
    "ShellConfig",
    "UrlCitation",
    "WebSearchConfig",
    "citations",
    "download",
]
