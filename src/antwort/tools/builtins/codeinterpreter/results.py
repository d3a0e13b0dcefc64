"""Converts an execution result to the item of a code interpreter call and the text that the model reads. Pure.

An exception of the code is a completed call with the traceback in its logs. A call has
failed where the code did not end by itself; the reason then says what state is left, and
what to do differently.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Final

import msgspec

from antwort.api.items import CodeInterpreterCall, CodeResult, Image, Logs
from antwort.containers.sandboxes.port import ExecutionResult, Figure, TextFile
from antwort.engine.ports import ToolDone
from antwort.engine.stores import ContainerFileRecord
from antwort.engine.truncate import truncate_bytes, truncate_chars
from antwort.tools.builtins.container.attachments import is_listed
from antwort.tools.builtins.container.container import STATE_LOST

_NO_OUTPUT: Final = "(no output)"
_MAX_LISTED_FILES: Final = 20

SANDBOX_RESTARTED: Final = (
    "[The sandbox was restarted since the last call: variables and files from before are gone. "
    "The user's own files are copied there again; define again what else you need.]"
)
_STATE_KEPT: Final = "Variables and files are as they were when it was stopped."


def from_result(
    call: CodeInterpreterCall,
    result: ExecutionResult,
    *,
    timeout: float,
    tier: str,
    max_bytes: int,
    sandbox_restarted: bool,
) -> ToolDone:
    """The end of a call whose code ran. The outputs of the item are truncated to `max_bytes`."""
    reason = _failure_reason(result, timeout=timeout, tier=tier)
    printed = "".join(piece.text for piece in result.output)
    note = _join_lines(result.echo or "", *(f"[{note}]" for note in result.notes), reason)
    logs = _join_lines(printed, note)
    text = [
        SANDBOX_RESTARTED if sandbox_restarted else "",
        truncate_chars(_join_lines(logs, *(f"[{file.path}]\n{file.text}" for file in result.text_files))) or _NO_OUTPUT,
        _figures_note(len(result.figures)),
        _files_note(result.files),
    ]
    outputs = _outputs(logs, result.figures, max_bytes, result.text_files)
    ended = msgspec.structs.replace(call, result=_code_result(result, note, max_bytes))
    return _done(ended, outputs, "\n".join(filter(None, text)), has_failed=bool(reason))


def interrupted(call: CodeInterpreterCall, printed: str, reason: str, max_bytes: int) -> ToolDone:
    """The end of a call whose result is unknown: the sandbox, or the connection to it, was lost."""
    logs = _join_lines(printed, reason)
    return _done(call, _outputs(logs, (), max_bytes), truncate_chars(logs))


def not_run(call: CodeInterpreterCall, reason: str) -> ToolDone:
    """The end of a call whose code was not run."""
    return _done(call, [Logs(reason)], reason)


def _done(call: CodeInterpreterCall, outputs: list[Logs | Image], text: str, *, has_failed: bool = True) -> ToolDone:
    ended = msgspec.structs.replace(call, status="failed" if has_failed else "completed", outputs=outputs)
    return ToolDone(msgspec.to_builtins(ended), text)


def _failure_reason(result: ExecutionResult, *, timeout: float, tier: str) -> str:
    """Why the code did not end by itself; empty where it did."""
    if not result.sandbox_alive:
        left = STATE_LOST
    else:
        left = _STATE_KEPT if result.keeps_variables else "The files are as they were before it."
    match result.status:
        case "timeout":
            return f"The code was stopped: it ran for more than {timeout:g} s. {left} Do less at a time."
        case "oom":
            return f"The code was ended: it needed more memory than there is ({tier}). {left} Use less at a time."
        case "ended":
            return f"The interpreter has ended: {result.reason or 'for a reason that is not known'}. {left}"
        case _:
            return ""


def _join_lines(*parts: str) -> str:
    """The parts, each on a line of its own, as a notebook shows output and the value of the last expression."""
    logs = ""
    for part in filter(None, parts):
        logs += part if not logs or logs.endswith("\n") else f"\n{part}"
    return logs


def _code_result(result: ExecutionResult, note: str, max_bytes: int) -> CodeResult:
    """Both streams and the note, each truncated to `max_bytes`; the exit code, and the files."""
    stdout, stderr = (
        truncate_bytes("".join(piece.text for piece in result.output if piece.stream == stream), max_bytes)
        for stream in ("stdout", "stderr")
    )
    return CodeResult(
        stdout=stdout,
        stderr=stderr,
        exit_code=result.exit_code,
        note=truncate_bytes(note, max_bytes),
        file_ids=tuple(file.id for file in result.files),
    )


def _outputs(
    logs: str, figures: Sequence[Figure], max_bytes: int, text_files: Sequence[TextFile] = ()
) -> list[Logs | Image]:
    """The logs, the figures and the text files. Text is truncated; figures that do not fit are left out, by a note."""
    images: list[Image] = []
    left = max_bytes
    for figure in figures:
        url = f"data:{figure.mime};base64,{base64.b64encode(figure.data).decode()}"
        if len(url) <= left:
            left -= len(url)
            images.append(Image(url))
    if missing := len(figures) - len(images):
        logs += f"\n[{missing} figures were left out: too large]"
    shown = truncate_bytes(logs, left)
    texts = [Logs(shown)]
    for file in text_files:
        left -= len(texts[-1].logs.encode())
        texts.append(Logs(truncate_bytes(file.text, left) if left > 0 else ""))
    return [*(text for text in texts[:1] if text.logs), *images, *(text for text in texts[1:] if text.logs)]


def _figures_note(count: int) -> str:
    return f"[{count} figure{'s' if count > 1 else ''} shown to the user]" if count else ""


def _files_note(files: Sequence[ContainerFileRecord]) -> str:
    paths = [file.path for file in files if is_listed(file.path)]
    if not paths:
        return ""
    names = [f"/mnt/data/{path}" for path in paths[:_MAX_LISTED_FILES]]
    more = f" and {len(paths) - _MAX_LISTED_FILES} more" if len(paths) > _MAX_LISTED_FILES else ""
    return f"[files written: {', '.join(names)}{more}]"
