"""Ready sections that bring their tools along, and the mounts that workspaces are made from. Asks no model."""

from __future__ import annotations

from weakincentives.filesystem import HostMount, VfsPath
from weakincentives.tools.jailed_shell import JailedShell
from weakincentives.tools.openai_code_interpreter import (
    AutoContainerConfig,
    CodeInterpreterCall,
    CodeInterpreterConfig,
    CodeInterpreterResult,
    ContainerFile,
    ExistingContainerRef,
    OpenAICodeInterpreterTool,
)
from weakincentives.tools.shell import CommandOutput, ShellCall, ShellExecutor, ShellResult
from weakincentives.tools.vfs import VfsToolsSection

__all__ = [
    "AutoContainerConfig",
    "CodeInterpreterCall",
    "CodeInterpreterConfig",
    "CodeInterpreterResult",
    "CommandOutput",
    "ContainerFile",
    "ExistingContainerRef",
    "HostMount",
    "JailedShell",
    "OpenAICodeInterpreterTool",
    "ShellCall",
    "ShellExecutor",
    "ShellResult",
    "VfsPath",
    "VfsToolsSection",
]
