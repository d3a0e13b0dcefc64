"""Standard output and standard error of a container, read as they come.

Between two calls nobody listens: what something left behind prints then belongs to no result. It is read all the same,
slowly, so that neither side waits for the other and a flood does not keep us busy.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

from antwort.sandbox.container.capture import StreamName

Listener = Callable[[StreamName, bytes], None]

_READ_BYTES: Final = 1 << 16
_DRAIN_READS: Final = 64
_PAUSE_SECONDS: Final = 0.05


class Pipes:
    """Our ends of the two pipes. `open` them once the other ends are somebody's; `listen` during a call."""

    def __init__(self, output: int, errors: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._names: dict[int, StreamName] = {output: "stdout", errors: "stderr"}
        self._paused: set[int] = set()
        self._listener: Listener | None = None
        for pipe in self._names:
            os.set_blocking(pipe, False)

    def open(self) -> None:
        for pipe in self._names:
            self._loop.add_reader(pipe, self._printed, pipe)

    def listen(self, listener: Listener) -> None:
        """Throw away what was printed between the calls, then hand on what comes, at full speed."""
        if self._paused:
            self.drain()
        self._listener = listener
        for pipe in tuple(self._paused):
            self._resume(pipe)

    def ignore(self) -> None:
        self._listener = None

    def drain(self) -> None:
        """Read what is there already; a writer that never stops gets no more than its share."""
        for pipe, name in self._names.items():
            for _ in range(_DRAIN_READS):
                try:
                    data = os.read(pipe, _READ_BYTES)
                except OSError:
                    break
                if not data:
                    break
                self._hand_on(name, data)

    def close(self) -> None:
        """Safe to call twice."""
        self._paused.clear()
        for pipe in self._names:
            self._loop.remove_reader(pipe)
            os.close(pipe)
        self._names = {}

    def _printed(self, pipe: int) -> None:
        try:
            data = os.read(pipe, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(pipe)
            return
        self._hand_on(self._names[pipe], data)
        if self._listener is None:
            self._loop.remove_reader(pipe)
            self._paused.add(pipe)
            self._loop.call_later(_PAUSE_SECONDS, self._resume, pipe)

    def _resume(self, pipe: int) -> None:
        if pipe in self._paused:
            self._paused.remove(pipe)
            self._loop.add_reader(pipe, self._printed, pipe)

    def _hand_on(self, name: StreamName, data: bytes) -> None:
        if self._listener is not None:
            self._listener(name, data)
