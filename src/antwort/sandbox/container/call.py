"""One call: the question, what was printed meanwhile, and what it came to. No I/O.

The answer is the code's own word for what happened. That the container is gone, and why, is never taken from it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from antwort.sandbox.container.capture import Capture, StreamName
from antwort.sandbox.container.reply import Answer, Image
from antwort.sandbox.jail import wire

Status = Literal["success", "error", "exit", "interrupted", "timeout", "ended"]
OnOutput = Callable[[StreamName, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one call came to. `status` `ended` means the container is gone; `reason` says why."""

    status: Status
    exit_code: int
    stdout: str
    stderr: str
    output: list[tuple[StreamName, str]]
    echo: str | None = None
    error: dict[str, str] | None = None
    images: list[Image] = field(default_factory=list[Image])
    images_left_out: int = 0
    """They were more, or larger, than one answer carries."""
    seconds: float = 0.0
    reason: str | None = None
    cut_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """What the interpreter is asked to do."""

    code: str
    echo: bool = True
    packages: str | None = None
    """The name of a set in its annex, importable from now on."""


class Call:
    """A question on its way. `answer` becomes what the code says, or None when it can say nothing any more."""

    def __init__(
        self, question: Question, *, seconds: float, output_bytes: int, on_output: OnOutput | None = None
    ) -> None:
        self.token = secrets.token_hex(8)
        self.question = wire.encode({"call": self.token, **asdict(question)})
        self.answer: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
        self._started = time.monotonic()
        self._deadline = self._started + seconds
        self._capture = Capture(output_bytes)
        self._on_output = on_output

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    async def answered(self, seconds: float) -> bool:
        """Wait so long for the answer."""
        done, _ = await asyncio.wait([self.answer], timeout=seconds)
        return bool(done)

    def printed(self, name: StreamName, data: bytes) -> None:
        text = self._capture.feed(name, data)
        if text and self._on_output is not None:
            self._on_output(name, text)

    def outcome(self, *, timed_out: bool, exit_code: int, reason: str | None) -> Outcome:
        """What it came to; exit code and reason are those of the container's end, if that was all there came."""
        if self._on_output is not None:
            for name in ("stdout", "stderr"):
                if rest := self._capture.rest(name):
                    self._on_output(name, rest)
        common: dict[str, Any] = {
            "stdout": self._capture.text("stdout"),
            "stderr": self._capture.text("stderr"),
            "output": self._capture.interleaved(),
            "seconds": time.monotonic() - self._started,
            "cut_bytes": self._capture.cut_bytes,
        }
        answer = self.answer.result() if self.answer.done() else None
        if answer is None:
            status: Status = "timeout" if timed_out else "ended"
            return Outcome(status=status, exit_code=-1 if timed_out else exit_code, reason=reason, **common)
        return Outcome(
            status="timeout" if timed_out else answer.status,
            exit_code=-1 if timed_out else answer.exit_code,
            echo=answer.echo,
            error=answer.error,
            images=answer.images,
            images_left_out=answer.left_out,
            **common,
        )
