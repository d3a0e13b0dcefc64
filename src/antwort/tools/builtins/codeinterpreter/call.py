"""One call of the code interpreter: from the first character of its code to the item that is left of it.

The model writes JSON, the client sees code: it is cut out of the arguments while they are
still being written.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec

from antwort.api.ids import new_id
from antwort.api.items import CodeInterpreterCall, Image, Logs
from antwort.containers.sandboxes.port import Output
from antwort.engine.partial_json import FieldReader
from antwort.engine.ports import Progress, ToolDone
from antwort.tools.builtins.codeinterpreter.results import Result, could_not_run
from antwort.tools.builtins.codeinterpreter.types import Arguments, BadArguments, read_arguments

_CALL: Final = "response.code_interpreter_call"
LIVE_OUTPUT: Final = "antwort:code_interpreter_call.output.delta"
"""What the code prints, as it prints it. OpenAI has no such event; only who asks for it gets it."""

Ended: TypeAlias = Literal["completed", "failed"]


class Runs(Protocol):
    """Whoever runs code."""

    def run(self, container_id: str, arguments: Arguments) -> AsyncGenerator[Output | Result, None]:
        """What it prints, then what it came to. Never raises for what the code or its sandbox does."""
        ...


class CodeCall:
    """A call under way. `trouble` is why it cannot be run, if that is known before it is written."""

    def __init__(self, bench: Runs, container_id: str, *, live: bool = False, trouble: str = "") -> None:
        self._bench = bench
        self._container_id = container_id
        self._live = live
        self._trouble = trouble
        self._id = new_id("ci_")
        self._reader = FieldReader("code")
        self._arguments: list[str] = []
        self._code: list[str] = []

    @property
    def item(self) -> dict[str, Any]:
        return msgspec.to_builtins(CodeInterpreterCall(self._id, self._container_id))

    def opening(self) -> Sequence[Progress]:
        return (Progress(f"{_CALL}.in_progress"),)

    def write(self, delta: str) -> Sequence[Progress]:
        self._arguments.append(delta)
        code = self._reader.feed(delta)
        if not code:
            return ()
        self._code.append(code)
        return (Progress(f"{_CALL}_code.delta", {"delta": code}),)

    async def run(self) -> AsyncGenerator[Progress | ToolDone, None]:
        try:
            arguments = read_arguments("".join(self._arguments))
        except BadArguments as error:
            yield self._written()
            yield self._done(could_not_run(str(error)))
            return
        self._code = [arguments.code]
        yield self._written()
        if self._trouble:
            yield self._done(could_not_run(self._trouble))
            return
        yield Progress(f"{_CALL}.interpreting")
        async with aclosing(self._bench.run(self._container_id, arguments)) as steps:
            async for step in steps:
                if isinstance(step, Result):
                    if step.status == "completed":
                        yield Progress(f"{_CALL}.completed")
                    yield self._done(step)
                elif self._live:
                    yield Progress(LIVE_OUTPUT, {"stream": step.stream, "delta": step.text})

    def failed(self, reason: str) -> ToolDone:
        return self._done(could_not_run(reason))

    def _written(self) -> Progress:
        return Progress(f"{_CALL}_code.done", {"code": "".join(self._code)})

    def _done(self, result: Result) -> ToolDone:
        outputs: list[Logs | Image] = list(result.outputs)
        item = CodeInterpreterCall(
            self._id, self._container_id, code="".join(self._code), outputs=outputs, status=result.status
        )
        return ToolDone(msgspec.to_builtins(item), result.text)
