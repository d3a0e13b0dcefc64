"""Shell tool types: `ShellCall`, `ShellResult` and the `ShellExecutor` protocol. Runs no commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from weakincentives.prompt import ToolContext


@dataclass(frozen=True, slots=True)
class ShellCall:
    """Commands to run in sequence, each in its own shell. The timeout applies to each command."""

    commands: tuple[str, ...] = ()
    timeout_ms: int | None = None
    max_output_length: int | None = None


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """The output of one command; `exit_code` is None if it timed out."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = 0

    def render(self) -> str:
        """stdout, stderr and exit code as text."""
        end = "(timed out)" if self.exit_code is None else f"(exit code {self.exit_code})"
        return "\n".join(part for part in (self.stdout.rstrip("\n"), self.stderr.rstrip("\n"), end) if part)


@dataclass(frozen=True, slots=True)
class ShellResult:
    """The outputs of the commands, in order."""

    outputs: tuple[CommandOutput, ...] = ()

    @property
    def success(self) -> bool:
        return all(output.exit_code == 0 for output in self.outputs)

    def render(self) -> str:
        """All outputs as text."""
        return "\n".join(output.render() for output in self.outputs) or "(no commands)"


class ShellExecutor(Protocol):
    """Runs commands for a model. `JailedShell` is an implementation; another may use a disposable machine.

    Returns one output per command. An exception becomes a failed tool result.
    """

    def __call__(self, call: ShellCall, /, *, context: ToolContext) -> Sequence[CommandOutput]: ...
