"""The shell of one response: runs the commands of its calls in the container of the response."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager
from typing import Any

from antwort.api.errors import ApiError
from antwort.config import CodeInterpreterSettings
from antwort.containers.sandboxes.port import ExecutionResult, Output, ShellCommand
from antwort.engine.ports import HostedCall, TextAnnotator, ToolDefaults, WholeTextAnnotator
from antwort.engine.stores import StoreFault
from antwort.tools.builtins.container.container import ResponseContainer, unavailable
from antwort.tools.builtins.shell.call import HostedShellCall
from antwort.tools.builtins.shell.types import SPEC, with_skills


class PreparedShell(ToolDefaults):
    """A `PreparedTool`."""

    reads_files = True

    def __init__(self, container: ResponseContainer, settings: CodeInterpreterSettings) -> None:
        self._container = container
        self.max_bytes = settings.max_output_size
        self._annotates = container.claim_annotations()
        self.specs = (container.described(with_skills(SPEC, container.skills), "/mnt/data"),)

    def shown_declaration(self) -> dict[str, Any] | None:
        """With the id of the container, once there is one, as OpenAI shows it."""
        record = self._container.record
        if record is None:
            return None
        return {"type": "shell", "environment": {"type": "container_reference", "container_id": record.id}}

    async def open(self, name: str, call_id: str, arguments: str) -> HostedCall:
        del name, arguments
        try:
            record = await self._container.open()
        except (ApiError, StoreFault) as error:
            return HostedShellCall(self, call_id, None, unavailable(error))
        return HostedShellCall(self, call_id, record.id)

    def annotator(self) -> TextAnnotator:
        return self._container.annotator() if self._annotates else WholeTextAnnotator()

    def lease(self) -> AbstractContextManager[object]:
        return self._container.lease()

    # ── the commands of a call ───────────────────────────────────────────────────────────────────────────────────────

    async def prepare(self, container_id: str) -> None:
        await self._container.prepare(container_id)

    def run(
        self, container_id: str, command: str, timeout_ms: int | None
    ) -> AsyncGenerator[Output | ExecutionResult, None]:
        timeout = None if timeout_ms is None else timeout_ms / 1000
        return self._container.run(container_id, ShellCommand(command), timeout=timeout)

    def note_result(self, result: ExecutionResult) -> bool:
        return self._container.note_result(result)

    def note_error(self, error: Exception) -> str:
        return self._container.note_error(error)
