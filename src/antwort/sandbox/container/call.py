"""One call in a container, of code or a command: its frame, the captured output and the `ExecReply`. No I/O.

The reply is the code's own claim. That the container has ended, and why, is never taken from it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from antwort.sandbox.container.capture import Capture, StreamName
from antwort.sandbox.container.reply import ExecReply
from antwort.sandbox.jail import wire

OnOutput = Callable[[StreamName, str], None]


class Call:
    """A call in progress. `reply` is set to what the code replied, or to None when the interpreter has ended.

    `request` is the content of its frame. `descriptors` are sent with it.
    """

    def __init__(
        self,
        request: dict[str, Any],
        *,
        timeout: float,
        output_bytes: int,
        on_output: OnOutput | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        self.token = secrets.token_hex(8)
        self.frame = wire.encode({"call": self.token, **request})
        self.descriptors = descriptors
        self.reply: asyncio.Future[ExecReply | None] = asyncio.get_running_loop().create_future()
        self._started = time.monotonic()
        self._deadline = self._started + timeout
        self._capture = Capture(output_bytes)
        self._on_output = on_output

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    async def wait_reply(self, seconds: float) -> bool:
        """Wait this long for the reply; returns whether it came."""
        done, _ = await asyncio.wait([self.reply], timeout=seconds)
        return bool(done)

    def add_output(self, name: StreamName, data: bytes) -> None:
        text = self._capture.feed(name, data)
        if text and self._on_output is not None:
            self._on_output(name, text)

    def result(self, *, timed_out: bool, exit_code: int, reason: str | None) -> ExecReply:
        """The reply with the captured output. Without a reply, exit code and reason are those of the container."""
        if self._on_output is not None:
            for name in ("stdout", "stderr"):
                if rest := self._capture.unsent(name):
                    self._on_output(name, rest)
        reply = self.reply.result() if self.reply.done() else None
        if reply is None:
            reply = ExecReply(status="ended", exit_code=exit_code, reason=reason)
        if timed_out:
            reply = replace(reply, status="timeout", exit_code=-1)
        return replace(
            reply,
            stdout=self._capture.text("stdout"),
            stderr=self._capture.text("stderr"),
            output=self._capture.interleaved(),
            execution_time_ms=int((time.monotonic() - self._started) * 1000),
            cut_bytes=self._capture.cut_bytes,
        )
