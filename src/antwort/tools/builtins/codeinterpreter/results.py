"""What a run came to: outputs for the caller, and a text that the model can go on from. Pure.

An exception is a result like any other: the call is completed, and the traceback is in its
logs. A call has failed where the code did not come to its own end; the reason then says
what is left, and what to do differently.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct

from antwort.api.items import Image, Logs
from antwort.containers.sandboxes.port import Figure, Outcome
from antwort.engine.stores import ContainerFileRecord
from antwort.engine.truncate import excerpt, fitting

_NO_OUTPUT: Final = "(no output)"
_NAMED: Final = 20

RESTARTED: Final = (
    "[The sandbox was started anew since the last call: variables and files from before are gone. "
    "The user's own files are copied there again; define again what else you need.]"
)
_LOST: Final = "Its variables and files are gone; the next call starts in an empty sandbox."


class Result(Struct, frozen=True):
    """How a call ended."""

    status: Literal["completed", "failed"]
    outputs: tuple[Logs | Image, ...]
    text: str


def came_to(
    outcome: Outcome, files: Sequence[ContainerFileRecord], *, seconds: float, tier: str, most: int, restarted: bool
) -> Result:
    """The result of a run that ended in whichever way. `most` is how many bytes the outputs may have."""
    reason = _reason(outcome, seconds=seconds, tier=tier)
    logs = _logs(outcome, reason)
    told = [
        RESTARTED if restarted else "",
        excerpt(logs) or _NO_OUTPUT,
        _figures(len(outcome.figures)),
        _files(files),
    ]
    return Result(
        "failed" if reason else "completed",
        _outputs(logs, outcome.figures, most),
        "\n".join(filter(None, told)),
    )


def broke_off(printed: str, reason: str, most: int) -> Result:
    """The result of a call that nobody could see the end of."""
    logs = _joined(printed, reason)
    return Result("failed", _outputs(logs, (), most), excerpt(logs))


def could_not_run(reason: str) -> Result:
    """The result of a call of which nothing was run."""
    return Result("failed", (Logs(reason),), reason)


def _reason(outcome: Outcome, *, seconds: float, tier: str) -> str:
    """Why the code did not come to its own end; empty where it did."""
    left = "Variables and files are as they were when it was stopped." if outcome.alive else _LOST
    match outcome.status:
        case "timeout":
            return f"The code was stopped: it ran for more than {seconds:g} s. {left} Do less at a time."
        case "oom":
            return f"The code was ended: it needed more memory than there is ({tier}). {left} Use less at a time."
        case "ended":
            return f"The interpreter has ended: {outcome.reason or 'for a reason that is not known'}. {left}"
        case _:
            return ""


def _logs(outcome: Outcome, reason: str) -> str:
    """All that was printed and the value of the last expression, as a notebook shows them."""
    return _joined("".join(one.text for one in outcome.output), outcome.echo or "", reason)


def _joined(*parts: str) -> str:
    logs = ""
    for part in filter(None, parts):
        logs += part if not logs or logs.endswith("\n") else f"\n{part}"
    return logs


def _outputs(logs: str, figures: Sequence[Figure], most: int) -> tuple[Logs | Image, ...]:
    """Cut to fit: pictures that would be too much are left out, and logs say so."""
    images: list[Image] = []
    left = most
    for figure in figures:
        url = f"data:{figure.mime};base64,{base64.b64encode(figure.data).decode()}"
        if len(url) <= left:
            left -= len(url)
            images.append(Image(url))
    if missing := len(figures) - len(images):
        logs += f"\n[{missing} figures were left out: too large]"
    shown = fitting(logs, left)
    return (*((Logs(shown),) if shown else ()), *images)


def _figures(count: int) -> str:
    if not count:
        return ""
    return f"[{count} figure{'s' if count > 1 else ''} shown to the user]"


def _files(files: Sequence[ContainerFileRecord]) -> str:
    if not files:
        return ""
    names = [f"/mnt/data/{file.path}" for file in files[:_NAMED]]
    more = f" and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
    return f"[files written: {', '.join(names)}{more}]"
