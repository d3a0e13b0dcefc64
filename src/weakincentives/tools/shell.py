"""Shell commands of a model: what is asked, what comes of it, and who may run them. Runs none itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from weakincentives.prompt import ToolContext


@dataclass(frozen=True, slots=True)
class ShellCall:
    """Commands, to be run one after the other, each in a shell of its own. The timeout is for each of them."""

    commands: tuple[str, ...] = ()
    timeout_ms: int | None = None
    max_output_length: int | None = None


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """What came of one command; `exit_code` is None where it ran out of time."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = 0

    def render(self) -> str:
        """As a person would want to read it."""
        end = "(timed out)" if self.exit_code is None else f"(exit code {self.exit_code})"
        return "\n".join(part for part in (self.stdout.rstrip("\n"), self.stderr.rstrip("\n"), end) if part)


@dataclass(frozen=True, slots=True)
class ShellResult:
    """What came of the commands, in their order."""

    outputs: tuple[CommandOutput, ...] = ()

    @property
    def success(self) -> bool:
        return all(output.exit_code == 0 for output in self.outputs)

    def render(self) -> str:
        """One after the other."""
        return "\n".join(output.render() for output in self.outputs) or "(no commands)"


class ShellExecutor(Protocol):
    """Runs commands for a model. `JailedShell` is one; another may hand them to a machine that can be thrown away.

    It returns one output for each command. What it raises is told to the model as the call's failure.
    """

    def __call__(self, call: ShellCall, /, *, context: ToolContext) -> Sequence[CommandOutput]: ...
