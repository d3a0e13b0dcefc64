"""Providers of the tools that the client runs. A call of the model becomes an item for the client."""

from __future__ import annotations

from typing import Final

from antwort.api.errors import unsupported_value
from antwort.api.tools import (
    ApplyPatchTool,
    ComputerTool,
    ComputerUsePreviewTool,
    LocalEnvironment,
    LocalShellTool,
    ShellTool,
    ToolDeclaration,
)
from antwort.engine.ports import PreparedTool, ToolContext
from antwort.tools.client_run import apply_patch, local_shell
from antwort.tools.client_run.computer import prepare_computer
from antwort.tools.client_run.prepared import PreparedClientTool
from antwort.tools.client_run.shell import prepare_local
from antwort.tools.registry import ProviderDefaults

_LOCAL: Final = "local"


class ClientRunProvider(ProviderDefaults):
    """`FunctionProvider` of the tools that only clients run."""

    name = "client_run"
    tools = ("apply_patch", "local_shell", "computer", "computer_use_preview")

    async def prepare(self, tool: ToolDeclaration, param: str, context: ToolContext) -> PreparedTool:
        match tool:
            case ApplyPatchTool():
                return PreparedClientTool(apply_patch.SPEC, apply_patch.read_call)
            case LocalShellTool():
                return PreparedClientTool(local_shell.SPEC, local_shell.read_call)
            case ComputerTool() | ComputerUsePreviewTool():
                return prepare_computer(tool, param, context)
            case _:
                raise TypeError(f"not a tool of this provider: {tool}")


class LocalShellProvider(ProviderDefaults):
    """`FunctionProvider` of the shell, where no other provider runs it in containers."""

    name = "shell"
    tools = ("shell",)

    async def prepare(self, tool: ToolDeclaration, param: str, context: ToolContext) -> PreparedTool:
        assert isinstance(tool, ShellTool)  # noqa: S101 - the only type in `tools`
        if not isinstance(tool.environment, LocalEnvironment | None):
            kind = str(tool.environment.__struct_config__.tag)
            raise unsupported_value(kind, [_LOCAL], f"{param}.environment.type")
        return prepare_local(tool, param, context)
