"""Ready-made tool sections, host mounts and shell executors. Imports no provider.

`OpenAICodeInterpreterTool` belongs to the OpenAI adapter; it is importable from here as well and loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from weakincentives.filesystem import HostMount, VfsPath
from weakincentives.tools.jailed_shell import JailedShell
from weakincentives.tools.shell import CommandOutput, ShellCall, ShellExecutor, ShellResult
from weakincentives.tools.vfs import VfsToolsSection

if TYPE_CHECKING:
    from weakincentives.adapters.openai import OpenAICodeInterpreterTool

_LAZY = {"OpenAICodeInterpreterTool": "weakincentives.adapters.openai"}

__all__ = [
    "CommandOutput",
    "HostMount",
    "JailedShell",
    "OpenAICodeInterpreterTool",
    "ShellCall",
    "ShellExecutor",
    "ShellResult",
    "VfsPath",
    "VfsToolsSection",
]


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value
