"""The code interpreter of one response: executes its calls in the container of the response."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager
from typing import Final

from antwort.api.errors import ApiError
from antwort.api.items import CodeInterpreterCall
from antwort.config import CodeInterpreterSettings
from antwort.containers.sandboxes.port import ExecutionResult, Output, PythonCode, SandboxError, SandboxRefused
from antwort.engine.ports import HostedCall, TextAnnotator, ToolContext, ToolDefaults, ToolDone, WholeTextAnnotator
from antwort.engine.stores import StoreFault
from antwort.tools.builtins.codeinterpreter.call import CodeCall
from antwort.tools.builtins.codeinterpreter.results import from_result, interrupted, not_run
from antwort.tools.builtins.codeinterpreter.types import ONE_SHOT_SPEC, SPEC, Arguments
from antwort.tools.builtins.container.container import ResponseContainer, unavailable

LIVE_OUTPUT: Final = "antwort:code_interpreter_call.live_output"
"""The value of `include` that requests the output of code as it is printed."""


class PreparedCodeInterpreter(ToolDefaults):
    """A `PreparedTool`."""

    reads_files = True

    def __init__(
        self,
        container: ResponseContainer,
        settings: CodeInterpreterSettings,
        context: ToolContext,
        *,
        is_stateful: bool,
    ) -> None:
        self._container = container
        self._settings = settings
        self._live_output = LIVE_OUTPUT in context.include
        self._annotates = container.claim_annotations()
        spec, directory = (SPEC, "/mnt/data") if is_stateful else (ONE_SHOT_SPEC, "the working directory")
        self.specs = (container.described(spec, directory),)

    async def open(self, name: str, call_id: str, arguments: str) -> HostedCall:
        del name, call_id, arguments
        try:
            record = await self._container.open()
        except (ApiError, StoreFault) as error:
            return CodeCall(self, "", live_output=self._live_output, unavailable=unavailable(error))
        return CodeCall(self, record.id, live_output=self._live_output)

    def annotator(self) -> TextAnnotator:
        return self._container.annotator() if self._annotates else WholeTextAnnotator()

    def lease(self) -> AbstractContextManager[object]:
        return self._container.lease()

    # ── the execution of a call ──────────────────────────────────────────────────────────────────────────────────────

    async def start(self, container_id: str, arguments: Arguments) -> AsyncGenerator[Output | ExecutionResult, None]:
        """Copy the files of the history into the container, and start the execution."""
        await self._container.prepare(container_id)
        return self._container.run(container_id, PythonCode(arguments.code, arguments.requirements))

    def succeeded(self, call: CodeInterpreterCall, result: ExecutionResult) -> ToolDone:
        return from_result(
            call,
            result,
            timeout=self._settings.execution_timeout,
            tier=self._container.memory_limit,
            max_bytes=self._settings.max_output_size,
            sandbox_restarted=self._container.note_result(result),
        )

    def failed(self, call: CodeInterpreterCall, error: Exception, printed: str) -> ToolDone:
        reason = self._container.note_error(error)
        if isinstance(error, SandboxRefused):
            return not_run(call, f"The code was not run: {error}")
        if isinstance(error, SandboxError):
            return interrupted(call, printed, reason, self._settings.max_output_size)
        return not_run(call, reason)
