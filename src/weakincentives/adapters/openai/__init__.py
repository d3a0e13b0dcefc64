"""OpenAI adapter: evaluates prompts with the Responses API of OpenAI or of a compatible server.

adapter        `OpenAIAdapter`
config         configuration of model, client, container, compaction and hosted tools
responses/     requests, history, tool parameters, parsing and streaming (`conversation` is one evaluation)
native_tools/  provider-run tools, one module each
compaction/    `CompactionManager` and `CompactionState`: shorter windows for long conversations
containers/    `ContainerFilesystem`, `ContainerManager`, and the `ContainerSource` protocol
workspace      `OpenAIContainerWorkspaceSection`: host files in a container
uploads        `host_mounts` of code interpreter
file_types     `FileTypes`: which types of files may be uploaded
citations      citations of a response, and the download of cited files
wire           wire format of the Responses API
sdk            OpenAI's SDK, imported on first use
sdk_hints      errors that name `citations` and `download` where the SDK has no such attribute
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
from weakincentives.adapters.openai.compaction.manager import CompactionManager
from weakincentives.adapters.openai.compaction.state import CompactionState, TranscriptItem
from weakincentives.adapters.openai.config import (
    CompactionConfig,
    ContainerConfig,
    OpenAIClientConfig,
    OpenAIHostedToolsConfig,
    OpenAIModelConfig,
)
from weakincentives.adapters.openai.containers.filesystem import ContainerFilesystem
from weakincentives.adapters.openai.containers.manager import ContainerManager
from weakincentives.adapters.openai.containers.source import ContainerSource, EvaluationScope
from weakincentives.adapters.openai.file_types import OPENAI_FILE_TYPES, FileTypes
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
from weakincentives.errors import CompactionError, ContainerExpiredError

__all__ = [
    "OPENAI_FILE_TYPES",
    "ApplyPatchConfig",
    "AutoContainerConfig",
    "Citation",
    "CodeInterpreterCall",
    "CodeInterpreterConfig",
    "CodeInterpreterResult",
    "CompactionConfig",
    "CompactionError",
    "CompactionManager",
    "CompactionState",
    "ContainerConfig",
    "ContainerExpiredError",
    "ContainerFile",
    "ContainerFileCitation",
    "ContainerFilesystem",
    "ContainerManager",
    "ContainerSource",
    "EvaluationScope",
    "ExistingContainerRef",
    "FileCitation",
    "FileSearchConfig",
    "FileTypes",
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
    "TranscriptItem",
    "UrlCitation",
    "WebSearchConfig",
    "citations",
    "download",
]
