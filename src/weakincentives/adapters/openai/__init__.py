"""OpenAI's Responses API, spoken to OpenAI or to any server that speaks it. All wire literals stay in this room.

adapter           `OpenAIAdapter`; `conversation` is one evaluation's requests
config            how it is set up
offer             the tools of a prompt on the wire, and every reason to refuse one
native_tools/     the tools that the provider runs, one file each
replay, reading   what a request repeats; what an answer means (`wire`, `projection`)
citations         what an answer refers to, and how to get it
container_source  the seam for sections that bring a container
workspace         `OpenAIContainerWorkspaceSection`, which brings one with files of this machine in it
container         `ContainerManager`, its one owner; `container_api` asks the server
container_fs      `ContainerFilesystem` (`container_contents`: `_index`, `_mirror`, `_transfer`, `_sync`)
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
from weakincentives.adapters.openai.config import (
    ContainerConfig,
    OpenAIClientConfig,
    OpenAIHostedToolsConfig,
    OpenAIModelConfig,
)
from weakincentives.adapters.openai.containers.filesystem import ContainerFilesystem
from weakincentives.adapters.openai.containers.manager import ContainerManager
from weakincentives.adapters.openai.containers.source import ContainerGuide, ContainerSource, ContainerVisit
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
from weakincentives.adapters.openai.native_tools.code_interpreter_tool import (
    AutoContainerConfig,
    CodeInterpreterCall,
    CodeInterpreterConfig,
    CodeInterpreterResult,
    ContainerFile,
    ExistingContainerRef,
    OpenAICodeInterpreterTool,
)
from weakincentives.adapters.openai.workspace import OpenAIContainerWorkspaceSection
from weakincentives.errors import ContainerExpiredError

__all__ = [
    "ApplyPatchConfig",
    "AutoContainerConfig",
    "Citation",
    "CodeInterpreterCall",
    "CodeInterpreterConfig",
    "CodeInterpreterResult",
    "ContainerConfig",
    "ContainerExpiredError",
    "ContainerFile",
    "ContainerFileCitation",
    "ContainerFilesystem",
    "ContainerGuide",
    "ContainerManager",
    "ContainerSource",
    "ContainerVisit",
    "ExistingContainerRef",
    "FileCitation",
    "FileSearchConfig",
    "McpConfig",
    "OpenAIAdapter",
    "OpenAIApplyPatchSection",
    "OpenAIClientConfig",
    "OpenAICodeInterpreterSection",
    "OpenAICodeInterpreterTool",
    "OpenAIContainerWorkspaceSection",
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
