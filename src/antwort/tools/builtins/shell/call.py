"""One shell call: streams its commands while the model writes them, runs them, and streams their output.

It has two items: `shell_call` with the commands, and `shell_call_output` with an entry for each of
them. The second begins when the first has ended.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final, Literal, Protocol

import msgspec

from antwort.api.errors import ApiError
from antwort.api.ids import new_id
from antwort.containers.sandboxes.port import ExecutionResult, Output, SandboxError
from antwort.engine.partial_json import ListItem, ListReader
from antwort.engine.ports import CallDefaults, NextItem, Progress, ToolDone
from antwort.engine.stores import StoreFault
from antwort.tools.builtins.shell.results import ShellOutput, command_output, interrupted_output, model_text
from antwort.tools.builtins.shell.types import BadCommands, CommandList, read_action

_COMMAND: Final = "response.shell_call_command"
_OUTPUT: Final = "response.shell_call_output_content"
_MIN_BYTES: Final = 1000
"""Of each stream of a command, when those before it have used up the limit of the call."""

Status = Literal["in_progress", "completed", "incomplete"]


class ShellRunner(Protocol):
    """Runs the commands of a call. `PreparedShell` implements it."""

    max_bytes: int
    """Of each stream of a command, and of all commands of a call before it."""

    async def prepare(self, container_id: str) -> None:
        """Before the first command of a call; `SandboxError`, `ApiError` or `StoreFault`."""
        ...

    def run(
        self, container_id: str, command: str, timeout_ms: int | None
    ) -> AsyncGenerator[Output | ExecutionResult, None]:
        """Run a command; the same errors from the generator."""
        ...

    def note_result(self, result: ExecutionResult) -> bool:
        """Take over a result; whether the files from before the command were gone."""
        ...

    def note_error(self, error: Exception) -> str:
        """Take over what an error means; the reason for the model."""
        ...


class HostedShellCall(CallDefaults):
    """A call in progress. `unavailable` is the reason why it cannot be run, if that is known from the start."""

    def __init__(self, runner: ShellRunner, call_id: str, container_id: str | None, unavailable: str = "") -> None:
        self._runner = runner
        self._call_id = call_id
        self._container_id = container_id
        self._unavailable = unavailable
        self._id = new_id("sh_")
        self._output_id = new_id("sho_")
        self._reader = ListReader("commands")
        self._arguments: list[str] = []
        self._streamed: list[str] = []
        """The commands of which events were sent, as far as they are written."""
        self._ended = 0
        """How many of them have ended."""
        self._action = CommandList(())
        self._outputs: list[ShellOutput] | None = None
        """Set when the output item has begun."""
        self._bytes_left = runner.max_bytes
        """Of the output of the commands that follow."""
        self._files: dict[str, str] = {}
        """The ids of the files that the commands wrote, by path."""
        self._is_restarted = False
        self._is_broken = False
        """Whether a command did not run to its end, so that those behind it are not run."""

    @property
    def item(self) -> dict[str, Any]:
        return self._call_item("in_progress")

    @property
    def serial_key(self) -> str | None:
        """The container, which runs one call at a time."""
        return self._container_id

    def started_events(self) -> Sequence[Progress]:
        return ()

    # ── the commands ─────────────────────────────────────────────────────────────────────────────────────────────────

    def write(self, delta: str) -> Sequence[Progress]:
        self._arguments.append(delta)
        return [event for part in self._reader.feed(delta) for event in self._part_events(part)]

    def _part_events(self, part: ListItem) -> list[Progress]:
        events: list[Progress] = []
        if part.index == len(self._streamed):
            self._streamed.append("")
            events.append(_command_event("added", part.index, command=""))
        if part.text:
            self._streamed[part.index] += part.text
            events.append(_command_event("delta", part.index, delta=part.text))
        if part.is_end:
            self._ended = part.index + 1
            events.append(_command_event("done", part.index, command=self._streamed[part.index]))
        return events

    def _rest_events(self) -> list[Progress]:
        """The events of commands that were not streamed to their end: those of invalid JSON, or not in a list."""
        events: list[Progress] = []
        commands = self._action.commands or tuple(self._streamed)
        for index in range(self._ended, len(commands)):
            command = commands[index]
            written = self._streamed[index] if index < len(self._streamed) else ""
            rest = command.removeprefix(written)
            events += self._part_events(ListItem(index, rest, is_end=True))
        return events

    # ── the run ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> AsyncGenerator[Progress | NextItem | ToolDone, None]:
        try:
            self._action = read_action("".join(self._arguments))
        except BadCommands as error:
            self._unavailable = str(error)
        for event in self._rest_events():
            yield event
        outputs: list[ShellOutput] = []
        self._outputs = outputs
        yield NextItem(self._call_item("completed"), self._output_item("completed"))
        if self._unavailable or self._container_id is None:
            outputs.append(interrupted_output("", "", self._unavailable))
            yield _output_event("done", 0, output=[outputs[0].entry()])
            yield self._done("completed")
            return
        for command in self._action.commands:
            async with aclosing(self._run_command(self._container_id, len(outputs), command)) as events:
                async for event in events:
                    yield event
            if self._is_broken:
                break
        yield self._done("completed")

    async def _run_command(self, container_id: str, index: int, command: str) -> AsyncGenerator[Progress, None]:
        limit, output = self._action.max_output_length, None
        printed: dict[str, list[str]] = {"stdout": [], "stderr": []}
        left = self._max_bytes if limit is None else limit
        try:
            if index == 0:
                await self._runner.prepare(container_id)
            async with aclosing(self._runner.run(container_id, command, self._action.timeout_ms)) as steps:
                async for step in steps:
                    if isinstance(step, Output):
                        printed[step.stream].append(step.text)
                        shown, left = step.text[:left], left - len(step.text[:left])
                        if shown:
                            yield _output_event("delta", index, delta={step.stream: shown})
                    else:
                        output = self._ended_output(step)
        except (SandboxError, ApiError, StoreFault) as error:
            reason = self._runner.note_error(error)
            self._is_broken = self._is_broken or output is None
            stdout, stderr = ("".join(printed[stream]) for stream in ("stdout", "stderr"))
            output = output or interrupted_output(stdout, stderr, reason, limit)
        if output is not None:
            assert self._outputs is not None  # noqa: S101 - set by the caller
            self._outputs.append(output)
            self._bytes_left -= len(output.stdout.encode()) + len(output.stderr.encode())
            yield _output_event("done", index, output=[output.entry()])

    def _ended_output(self, result: ExecutionResult) -> ShellOutput:
        self._is_restarted |= self._runner.note_result(result)
        self._files |= {file.path: file.id for file in result.files}
        self._is_broken = not result.sandbox_alive
        limit = self._action.max_output_length
        return command_output(result, max_bytes=self._max_bytes, max_length=limit)

    @property
    def _max_bytes(self) -> int:
        return max(self._bytes_left, min(_MIN_BYTES, self._runner.max_bytes))

    # ── the items ────────────────────────────────────────────────────────────────────────────────────────────────────

    def failed(self, reason: str) -> ToolDone:
        if self._outputs is None:
            return ToolDone(self._call_item("incomplete"), reason)
        done = self._done("incomplete")
        return ToolDone(done.item, f"{done.text}\n{reason}" if done.text else reason)

    def _call_item(self, status: Status) -> dict[str, Any]:
        action = msgspec.to_builtins(self._action)
        if not self._action.commands:
            action["commands"] = self._streamed[: self._ended]
        return {
            "id": self._id,
            "type": "shell_call",
            "status": status,
            "action": {**action, "commands": [*action["commands"]]},
            "call_id": self._call_id,
            "environment": None
            if self._container_id is None
            else {"type": "container_reference", "container_id": self._container_id},
        }

    def _output_item(self, status: Status) -> dict[str, Any]:
        return {
            "id": self._output_id,
            "type": "shell_call_output",
            "status": status,
            "call_id": self._call_id,
            "max_output_length": self._action.max_output_length,
            "output": [output.entry() for output in self._outputs or ()],
            **({"antwort:file_ids": [*self._files.values()]} if self._files else {}),
        }

    def _done(self, status: Status) -> ToolDone:
        text = model_text(self._outputs or (), files=[*self._files], is_restarted=self._is_restarted)
        return ToolDone(self._output_item(status), text)


def _command_event(kind: str, index: int, **fields: str) -> Progress:
    return Progress(f"{_COMMAND}.{kind}", {"command_index": index, **fields}, has_item_id=False)


def _output_event(kind: str, index: int, **fields: object) -> Progress:
    return Progress(f"{_OUTPUT}.{kind}", {"command_index": index, **fields})
