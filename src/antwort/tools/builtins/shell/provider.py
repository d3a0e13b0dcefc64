"""Provider of the shell: prepares it in the container of a response, or for the client."""

from __future__ import annotations

from antwort.api.tools import AutoEnvironment, ReferencedEnvironment, ShellTool, ToolDeclaration
from antwort.config import CodeInterpreterSettings
from antwort.engine.ports import PreparedTool, ToolContext
from antwort.tools.builtins.container import ResponseContainers
from antwort.tools.builtins.shell.prepared import PreparedShell
from antwort.tools.builtins.shell.types import NAME
from antwort.tools.client_run import prepare_local
from antwort.tools.registry import ProviderDefaults


class ShellProvider(ProviderDefaults):
    """`FunctionProvider` of `shell`. `Containers` has the metrics, and outlives responses."""

    name = NAME
    tools = (NAME,)

    def __init__(self, containers: ResponseContainers, settings: CodeInterpreterSettings) -> None:
        self._containers = containers
        self._settings = settings

    async def prepare(self, tool: ToolDeclaration, param: str, context: ToolContext) -> PreparedTool:
        assert isinstance(tool, ShellTool)  # noqa: S101 - the only type in `tools`
        match tool.environment:
            case AutoEnvironment() as auto:
                container = await self._containers.prepare(auto, f"{param}.environment", context)
            case ReferencedEnvironment(container_id=named):
                container = await self._containers.prepare(named, f"{param}.environment", context)
            case _:
                return prepare_local(tool, param, context)
        return PreparedShell(container, self._settings)
