"""Provider of the code interpreter tool: prepares it, in the container of a response."""

from __future__ import annotations

from antwort.api.tools import CodeInterpreterTool, ToolDeclaration
from antwort.config import CodeInterpreterSettings
from antwort.engine.ports import ToolContext
from antwort.tools.builtins.codeinterpreter.prepared import PreparedCodeInterpreter
from antwort.tools.builtins.codeinterpreter.types import NAME
from antwort.tools.builtins.container import ResponseContainers
from antwort.tools.registry import ProviderDefaults


class CodeInterpreterProvider(ProviderDefaults):
    """`FunctionProvider` of `code_interpreter`. `Containers` has the metrics, and outlives responses."""

    name = NAME
    tools = (NAME,)

    def __init__(self, containers: ResponseContainers, settings: CodeInterpreterSettings) -> None:
        self._containers = containers
        self._settings = settings

    async def prepare(self, tool: ToolDeclaration, param: str, context: ToolContext) -> PreparedCodeInterpreter:
        assert isinstance(tool, CodeInterpreterTool)  # noqa: S101 - the only type in `tools`
        container = await self._containers.prepare(tool.container, f"{param}.container", context)
        is_stateful = await self._containers.is_stateful()
        return PreparedCodeInterpreter(container, self._settings, context, is_stateful=is_stateful)
