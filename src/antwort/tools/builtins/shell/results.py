"""The outputs of shell commands: the entries of a `shell_call_output`, and the text that the model reads. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from antwort.containers.sandboxes.port import ExecutionResult
from antwort.engine.truncate import truncate_bytes, truncate_chars
from antwort.tools.builtins.container.attachments import is_listed

_NO_EXIT_CODE: Final = -1
"""The exit code where no command has ended by itself."""
_MAX_LISTED_FILES: Final = 20

SANDBOX_RESTARTED: Final = (
    "[The sandbox was restarted since the last call: files from before are gone. The user's own files are copied "
    "there again; make again what else you need.]"
)


class ShellOutput(Struct, frozen=True):
    """The output of one command. Without an exit code, it has timed out."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None

    def entry(self) -> dict[str, Any]:
        """The entry of the item."""
        outcome = {"type": "timeout"} if self.exit_code is None else {"type": "exit", "exit_code": self.exit_code}
        return {"outcome": outcome, "stderr": self.stderr, "stdout": self.stdout}

    def text(self) -> str:
        """The same for the model."""
        end = "(timed out)" if self.exit_code is None else f"(exit code {self.exit_code})"
        return "\n".join(filter(None, (self.stdout.rstrip("\n"), self.stderr.rstrip("\n"), end)))


def command_output(result: ExecutionResult, *, max_bytes: int, max_length: int | None) -> ShellOutput:
    """The output of a command that has ended, or was stopped."""
    stdout, stderr = (
        truncate_bytes("".join(piece.text for piece in result.output if piece.stream == stream), max_bytes)
        for stream in ("stdout", "stderr")
    )
    reason = failure_reason(result)
    if reason:
        stderr = _join(stderr, f"[{reason}]")
    exit_code = None if result.status == "timeout" else result.exit_code
    return _truncated(ShellOutput(stdout, stderr, exit_code), max_length)


def interrupted_output(stdout: str, stderr: str, reason: str, max_length: int | None = None) -> ShellOutput:
    """The output of a command that was not run, or whose result is not known."""
    return _truncated(ShellOutput(stdout, _join(stderr, f"[{reason}]"), _NO_EXIT_CODE), max_length)


def failure_reason(result: ExecutionResult) -> str:
    """Why the sandbox has ended, or the command was not run to its end; empty where it was."""
    match result.status:
        case "oom":
            return "The sandbox was ended: the command needed more memory than there is. Its files are gone."
        case "ended":
            return f"The sandbox has ended: {result.reason or 'for a reason that is not known'}. Its files are gone."
        case "interrupted":
            return "The command was interrupted."
        case _:
            return ""


def model_text(outputs: Sequence[ShellOutput], *, files: Sequence[str], is_restarted: bool) -> str:
    """What the model reads of a call."""
    shown = truncate_chars("\n".join(output.text() for output in outputs))
    files = [path for path in files if is_listed(path)]
    more = f" and {len(files) - _MAX_LISTED_FILES} more" if len(files) > _MAX_LISTED_FILES else ""
    names = ", ".join(f"/mnt/data/{path}" for path in files[:_MAX_LISTED_FILES])
    written = f"[files written: {names}{more}]" if files else ""
    return "\n".join(filter(None, (SANDBOX_RESTARTED if is_restarted else "", shown, written)))


def _truncated(output: ShellOutput, max_length: int | None) -> ShellOutput:
    """At most so many characters of both streams together. One that is short leaves its share to the other."""
    if max_length is None or len(output.stdout) + len(output.stderr) <= max_length:
        return output
    half = max_length // 2
    errors = min(len(output.stderr), max(half, max_length - len(output.stdout)))
    return ShellOutput(_cut(output.stdout, max_length - errors), _cut(output.stderr, errors), output.exit_code)


def _cut(text: str, limit: int) -> str:
    """The head and the tail of a text with a mark between them; of a text with little space, the head."""
    if len(text) <= limit:
        return text
    mark = f"\n[... {len(text) - limit} characters cut ...]\n"
    if len(mark) > limit // 2:
        return text[:limit]
    left = limit - len(mark)
    return text[: left // 2] + mark + text[len(text) - (left - left // 2) :]


def _join(text: str, note: str) -> str:
    return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{note}"
