"""Reader of a container's standard output and standard error pipes.

Between two calls output is read and discarded, since it belongs to no result. It is read slowly then: the writer does
not block for ever, and a flood of output does not keep the event loop busy.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

from antwort.sandbox.container.capture import StreamName

OutputHandler = Callable[[StreamName, bytes], None]

_READ_BYTES: Final = 1 << 16
_MAX_DRAIN_READS: Final = 64
_PAUSE_SECONDS: Final = 0.05


class Pipes:
    """The read ends of both pipes: `start` once the container has the write ends, `start_capture` during a call."""

    def __init__(self, output: int, errors: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._names: dict[int, StreamName] = {output: "stdout", errors: "stderr"}
        self._paused: set[int] = set()
        self._handler: OutputHandler | None = None
        for pipe in self._names:
            os.set_blocking(pipe, False)

    def start(self) -> None:
        for pipe in self._names:
            self._loop.add_reader(pipe, self._on_readable, pipe)

    def start_capture(self, handler: OutputHandler) -> None:
        """Discard what was written between calls, then pass output to the handler at full speed."""
        if self._paused:
            self.drain()
        self._handler = handler
        for pipe in tuple(self._paused):
            self._resume(pipe)

    def stop_capture(self) -> None:
        self._handler = None

    def drain(self) -> None:
        """Read what is in the pipes now, bounded for a writer that never stops."""
        for pipe, name in self._names.items():
            for _ in range(_MAX_DRAIN_READS):
                try:
                    data = os.read(pipe, _READ_BYTES)
                except OSError:
                    break
                if not data:
                    break
                self._dispatch(name, data)

    def close(self) -> None:
        """Idempotent."""
        self._paused.clear()
        for pipe in self._names:
            self._loop.remove_reader(pipe)
            os.close(pipe)
        self._names = {}

    def _on_readable(self, pipe: int) -> None:
        try:
            data = os.read(pipe, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(pipe)
            return
        self._dispatch(self._names[pipe], data)
        if self._handler is None:
            self._loop.remove_reader(pipe)
            self._paused.add(pipe)
            self._loop.call_later(_PAUSE_SECONDS, self._resume, pipe)

    def _resume(self, pipe: int) -> None:
        if pipe in self._paused:
            self._paused.remove(pipe)
            self._loop.add_reader(pipe, self._on_readable, pipe)

    def _dispatch(self, name: StreamName, data: bytes) -> None:
        if self._handler is not None:
            self._handler(name, data)
