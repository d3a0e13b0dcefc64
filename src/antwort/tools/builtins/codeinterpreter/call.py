"""One code interpreter call: streams the code while the model writes it, runs it, and returns its item.

The model writes JSON, the client sees code: the code is extracted from the arguments while
they are still incomplete.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final, Protocol

import msgspec

from antwort.api.errors import ApiError
from antwort.api.ids import new_id
from antwort.api.items import CodeInterpreterCall
from antwort.containers.sandboxes.port import ExecutionResult, Output, SandboxError
from antwort.engine.partial_json import FieldReader
from antwort.engine.ports import CallDefaults, Progress, ToolDone
from antwort.engine.stores import StoreFault
from antwort.tools.builtins.codeinterpreter.results import not_run
from antwort.tools.builtins.codeinterpreter.types import Arguments, BadArguments, read_arguments

_CALL: Final = "response.code_interpreter_call"
LIVE_OUTPUT_EVENT: Final = "antwort:code_interpreter_call.output.delta"
"""Output of the code as it is printed. OpenAI has no such event; it is sent only to a request that includes it."""


class CodeRunner(Protocol):
    """Runs the code of a call, and makes its item. `PreparedCodeInterpreter` implements it."""

    async def start(self, container_id: str, arguments: Arguments) -> AsyncGenerator[Output | ExecutionResult, None]:
        """Start an execution; `SandboxError`, `ApiError` or `StoreFault` here or from the generator."""
        ...

    def succeeded(self, call: CodeInterpreterCall, result: ExecutionResult) -> ToolDone:
        """The end of a call with this result."""
        ...

    def failed(self, call: CodeInterpreterCall, error: Exception, printed: str) -> ToolDone:
        """The end of a call whose execution raised one of these errors."""
        ...


class CodeCall(CallDefaults):
    """A call in progress. `unavailable` is the reason why it cannot be run, if that is known from the start."""

    def __init__(
        self, runner: CodeRunner, container_id: str, *, live_output: bool = False, unavailable: str = ""
    ) -> None:
        self._runner = runner
        self._live_output = live_output
        self._unavailable = unavailable
        self._call = CodeInterpreterCall(new_id("ci_"), container_id)
        self._code_reader = FieldReader("code")
        self._arguments: list[str] = []
        self._code: list[str] = []

    @property
    def item(self) -> dict[str, Any]:
        return msgspec.to_builtins(self._call)

    @property
    def serial_key(self) -> str | None:
        """The container, which runs one call at a time."""
        return self._call.container_id or None

    def started_events(self) -> Sequence[Progress]:
        return (Progress(f"{_CALL}.in_progress"),)

    def write(self, delta: str) -> Sequence[Progress]:
        self._arguments.append(delta)
        code = self._code_reader.feed(delta)
        if not code:
            return ()
        self._code.append(code)
        return (Progress(f"{_CALL}_code.delta", {"delta": code}),)

    async def run(self) -> AsyncGenerator[Progress | ToolDone, None]:
        try:
            arguments = read_arguments("".join(self._arguments))
        except BadArguments as error:
            yield self._code_done()
            yield self.failed(str(error))
            return
        self._code = [arguments.code]
        yield self._code_done()
        if self._unavailable:
            yield self.failed(self._unavailable)
            return
        yield Progress(f"{_CALL}.interpreting")
        call, printed, done = self._current(), list[str](), None
        try:
            async with aclosing(await self._runner.start(call.container_id, arguments)) as steps:
                async for step in steps:
                    if isinstance(step, ExecutionResult):
                        done = self._runner.succeeded(call, step)
                        continue
                    printed.append(step.text)
                    if self._live_output:
                        yield Progress(LIVE_OUTPUT_EVENT, {"stream": step.stream, "delta": step.text})
        except (SandboxError, ApiError, StoreFault) as error:
            done = done or self._runner.failed(call, error, "".join(printed))
        if done is None:
            return
        if done.item["status"] == "completed":
            yield Progress(f"{_CALL}.completed")
        yield done

    def failed(self, reason: str) -> ToolDone:
        return not_run(self._current(), reason)

    def _current(self) -> CodeInterpreterCall:
        return msgspec.structs.replace(self._call, code="".join(self._code))

    def _code_done(self) -> Progress:
        return Progress(f"{_CALL}_code.done", {"code": "".join(self._code)})
